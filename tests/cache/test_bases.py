"""Bases: rows in `kmeans4` next to the exact ones, made from them as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caches import Rounding, cache_of, held, held_planes, rotated
from rows import sixteen_rows
from suffice.attention import planes
from suffice.attention.tiers import Tiers
from suffice.backends.cpu.attention import attend
from suffice.cache import KV_DTYPES, row_bytes
from suffice.cache.kv import KVCache

SIZES = (16, 64, 80, 128, 512)
EXACT = tuple(dtype for dtype in KV_DTYPES if dtype not in ("kmeans4", "planes"))


def base_of(cache: KVCache) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and values [G, S, D] by their bases alone."""
    keys, values = (np.empty_like(cache.keys(0)) for _ in range(2))
    cache.native.load(0, 0, keys, values, base=True)
    return keys, values


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", EXACT)
def test_the_base_is_kmeans4_of_the_stored_row(
    dtype: str, size: int, fitted: bool, each_isa: str
) -> None:
    """Bit for bit, whether the rounding of keys is fitted or not; and exact rows do not change."""
    how = {"rounding": Rounding(1, 1, size).native if fitted else None}
    for kind in ("normal", "outliers", "sizes", "one"):
        rows = sixteen_rows(kind, size).clip(-6e4, 6e4)  # float16 has no larger numbers
        plain = cache_of(rows, -rows, dtype)
        cache = cache_of(rows, -rows, dtype, bases=True, **how)
        codes = cache_of(*held(plain), "kmeans4", **how)
        assert all(map(np.array_equal, held(cache), held(plain)))
        assert all(map(np.array_equal, base_of(cache), held(codes)))


@pytest.mark.parametrize("size", SIZES)
def test_bases_are_the_reference_s(size: int, each_isa: str) -> None:
    rows = sixteen_rows("normal", size)
    cache = cache_of(rows, -rows, "float32", bases=True, rounding=None)
    for keys, (given, found) in enumerate(
        zip((-rows, rows), held_planes(cache)[::-1], strict=True)
    ):
        expected = planes.with_base(given, keys=bool(keys))
        assert (found.levels == expected.levels).mean() > 0.9  # elements midway may get either
        np.testing.assert_allclose(found.whole, rotated(given.astype(np.float64)), atol=1e-5)


@pytest.mark.parametrize(
    ("types", "more"),
    [
        (("bfloat16", "bfloat16"), 2 * (32 + 4) + 2),
        (("planes", "int8"), 32 + 4 + 2),
        (("int8", "kmeans4"), 32 + 4 + 2),
        (("planes", "planes"), 2),
        (("kmeans4", "kmeans4"), 2),
    ],
)
def test_bytes_of_a_row(types: tuple[str, str], more: int) -> None:
    """What a type has in 4 bits already is not kept twice; two bytes have the errors."""
    rows = sixteen_rows("normal", 64)
    cache = cache_of(rows, rows, types[0], value_dtype=types[1], bases=True)
    assert cache.row_bytes == sum(row_bytes(dtype, 64) for dtype in types) + more
    assert cache.row_bytes == sum(row_bytes(dtype, 64, based=True) for dtype in types) + 2


@pytest.mark.parametrize("kept", [[0, 1, 5, 15], list(range(1, 16))])
@pytest.mark.parametrize(
    "types", [("bfloat16", "bfloat16"), ("int8", "float32"), ("planes", "int8")]
)
def test_a_base_moves_with_its_row(types: tuple[str, str], kept: list[int]) -> None:
    rows = sixteen_rows("normal", 64)
    how: dict[str, Any] = {"value_dtype": types[1], "bases": True}
    cache, fresh = (cache_of(each, -each, types[0], **how) for each in (rows, rows[:, kept]))
    before = [part[:, kept] for part in base_of(cache)]
    cache.native.evict(0, np.array([kept], np.int32), 16)
    after = tuple(np.empty_like(part) for part in before)
    cache.native.load(0, 0, *after, base=True)
    assert all(map(np.array_equal, after, before))
    assert all(map(np.array_equal, after, base_of(fresh)))
    rule, q = Tiers(1, 0, bounded=True).rule(), np.full((2, 1, 64), 0.02, np.float32)
    (moved,), (wanted,) = (
        attend(rule, q, each, 0, scale=0.1)[1] for each in (cache, fresh)
    )  # with the errors
    assert (moved.missing, moved.shift) == (wanted.missing, wanted.shift)
    assert 0 < moved.missing < 1 and moved.shift > 2 * moved.missing


def test_the_base_of_a_draft_moves_with_it() -> None:
    rows = sixteen_rows("normal", 64)
    cache = cache_of(rows[:, :8], -rows[:, :8], "bfloat16", bases=True)
    cache.reserve(8)
    cache.append_tentative(rows[None, :, 8:], -rows[None, :, 8:], [-1, 0, 0, -1, 1, 2, 5, 6])
    cache.commit([0, 2, 5])
    wanted = [*range(8), 8, 10, 13]
    fresh = cache_of(rows[:, wanted], -rows[:, wanted], "bfloat16", bases=True)
    assert all(map(np.array_equal, base_of(cache), base_of(fresh)))


def test_blocks_that_a_window_leaves_take_their_bases_along() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((1, 200, 64)).astype(np.float32)
    cache = cache_of(rows, -rows, "bfloat16", bases=True)
    before = base_of(cache)
    cache.native.set_eligible(0, 16, 50, 0)
    gone = int(cache.native.dead_rows(200))
    cache.native.compact(200)
    assert gone > 0 and cache.held(0) == 200 - gone
    kept = [*range(16), *range(16 + gone, 200)]
    assert all(np.array_equal(a, b[:, kept]) for a, b in zip(base_of(cache), before, strict=True))
