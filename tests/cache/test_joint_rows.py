"""Joint rows, which are key and value at once: what is stored, moved and refused."""

from __future__ import annotations

import numpy as np
import pytest

from caches import empty_cache
from suffice.cache import JOINT_DTYPES, KV_DTYPES, alike, check_rows, row_bytes, token_bytes
from suffice.cache.kv import KVCache
from suffice.errors import InputError

RANK, ROTATED, LAYERS = 48, 16, 2
SIZE = RANK + ROTATED
ROTATED_GAIN = 30.0  # rotated entries are often much larger than normalized ones


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal((LAYERS, 1, count, SIZE), np.float32)
    found[..., RANK:] *= ROTATED_GAIN
    return found


def filled(dtype: str, rows: np.ndarray, growth: str = "double") -> KVCache:
    cache = empty_cache(LAYERS, 1, SIZE, dtype, growth=growth, joint=RANK)
    for first in range(0, rows.shape[2], 7):
        part = rows[:, :, first : first + 7]
        cache.reserve(part.shape[2])
        for layer in range(LAYERS):
            cache.append(layer, part[layer], None)
        cache.advance(part.shape[2])
    return cache


def stored(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Return rows as they read after being stored; int8 has a scale for each of the two parts."""
    if dtype == "int8":
        parts = np.split(rows, [RANK], axis=-1)
        scales = [np.abs(part).max(-1, keepdims=True) / np.float32(127) for part in parts]
        pairs = zip(parts, scales, strict=True)
        return np.concatenate([np.rint(part * (1 / scale)) * scale for part, scale in pairs], -1)
    if dtype == "bfloat16":
        bits = rows.view(np.uint32)
        rounded = bits + 0x7FFF + (bits >> 16 & 1)
        return (rounded & 0xFFFF0000).view(np.float32)
    return rows.astype(dtype).astype(np.float32)


@pytest.mark.parametrize("dtype", JOINT_DTYPES)
def test_a_row_is_read_as_key_and_its_beginning_as_value(each_isa: str, dtype: str) -> None:
    rows = rows_of(37)
    cache, expected = filled(dtype, rows), stored(rows, dtype)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(cache.keys(layer), expected[layer])
        values = cache.values(layer)
        np.testing.assert_array_equal(values[..., :RANK], expected[layer][..., :RANK])
        assert not values[..., RANK:].any()


@pytest.mark.parametrize("dtype", JOINT_DTYPES)
def test_a_row_is_stored_once(dtype: str) -> None:
    cache = filled(dtype, rows_of(64), growth="upfront")
    scales = 2 * 4 if dtype == "int8" else 0
    element = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}[dtype]
    layers = alike(1, 1, SIZE)
    assert token_bytes(dtype, dtype, layers, joint=True) == SIZE * element + scales
    assert cache.row_bytes == LAYERS * (SIZE * element + scales)
    assert token_bytes(dtype, dtype, layers) == 2 * row_bytes(dtype, SIZE)


@pytest.mark.parametrize("dtype", JOINT_DTYPES)
def test_rows_that_are_left_over_or_copied_are_the_same(dtype: str) -> None:
    rows = rows_of(50)
    expected = stored(rows, dtype)
    cache = filled(dtype, rows)
    copied = cache.fork(40)
    kept = np.array([[*range(16), 20, 33, *range(40, 50)]], np.int32)
    cache.evict(0, kept)
    np.testing.assert_array_equal(cache.keys(0), expected[0][:, kept[0]])
    np.testing.assert_array_equal(cache.values(0)[..., :RANK], expected[0][:, kept[0], :RANK])
    np.testing.assert_array_equal(cache.keys(1), expected[1])
    np.testing.assert_array_equal(copied.keys(0), expected[0][:, :40])
    cache.reserve(3)  # later rows come after those that are left
    more = rows_of(3, 1)
    for layer in range(LAYERS):
        cache.append(layer, more[layer], None)
    cache.advance(3)
    last = cache.held(0) - 3
    np.testing.assert_array_equal(cache.keys(0)[:, last:], stored(more, dtype)[0])


@pytest.mark.parametrize("growth", ["iterative", "bmc:rows=16", "step:5"])
def test_rows_survive_growth(growth: str) -> None:
    rows = rows_of(80)
    cache = filled("int8", rows, growth)
    np.testing.assert_array_equal(cache.keys(1), stored(rows, "int8")[1])


def test_types_that_joint_rows_cannot_have() -> None:
    for dtype in set(KV_DTYPES) - set(JOINT_DTYPES):
        with pytest.raises(InputError, match="stores keys and values as one row, in one type"):
            check_rows(SIZE, RANK, dtype, dtype)
    with pytest.raises(InputError, match="'int8/float16': this model stores"):
        check_rows(SIZE, RANK, "int8", "float16")
    check_rows(576, 512, "int8", "int8")
    with pytest.raises(InputError, match="multiple of 16 up to 576"):
        check_rows(592, 512, "int8", "int8")
    with pytest.raises(InputError, match="multiple of 16 up to 512"):
        check_rows(528, 0, "int8", "int8")


@pytest.mark.parametrize(
    ("joint", "options", "message"),
    [
        (SIZE, {}, "first multiple of 16 entries"),
        (24, {}, "first multiple of 16 entries"),
        (RANK, {"bases": True}, "joint rows have neither bases nor a rounding of their own"),
    ],
)
def test_a_cache_that_cannot_be_joint(joint: int, options: dict[str, bool], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        empty_cache(1, 1, SIZE, joint=joint, rounding=None, **options)


def test_values_are_given_where_they_are_apart_and_nowhere_else() -> None:
    rows = rows_of(2)[0]
    for joint, values in ((RANK, rows), (0, None)):
        cache = empty_cache(1, 1, SIZE, joint=joint)
        cache.reserve(2)
        with pytest.raises(ValueError, match="all but joint rows have values of their own"):
            cache.append(0, rows, values)
