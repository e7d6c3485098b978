"""The attention that each token of a prompt gets, natively and in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caches import as_multiplied
from suffice import native
from suffice.cache import GROWTHS, KV_DTYPES, alike
from suffice.cache.kv import KVCache
from suffice.policy.observation import attention_sums, weight_sums

GROUPS, HEADS, SIZE, SCALE, ROWS = 2, 6, 32, 0.3, 333
ROUNDED = ("int8", "planes")  # their queries have 16 bits


def filled(dtype: str, rows: int = ROWS) -> KVCache:
    growth = GROWTHS.build("upfront")
    cache = KVCache(
        alike(2, GROUPS, SIZE), growth=growth, limit=500, key_dtype=dtype, value_dtype=dtype
    )
    cache.reserve(rows)
    for layer in range(2):
        cache.append(layer, *np.random.default_rng(layer).standard_normal((2, GROUPS, rows, SIZE)))
    cache.advance(rows)
    return cache


def queries(count: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((HEADS, count, SIZE), np.float32)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(("count", "end"), [(1, 1), (1, 333), (16, 16), (21, 100), (64, 333)])
def test_they_are_those_of_the_definition(dtype: str, count: int, end: int, each_isa: str) -> None:
    cache, q = filled(dtype), queries(count)
    found = weight_sums(cache, 1, q, end, SCALE)
    multiplied = np.stack([as_multiplied(own, cache, SCALE, fitted=False) for own in q]).astype(
        np.float64
    )
    keys = cache.keys(1, end).astype(np.float64)
    expected = attention_sums(multiplied, keys, SCALE)
    assert found.shape == (GROUPS, end)
    assert found.sum() == pytest.approx(HEADS * count, rel=1e-5)
    plain = attention_sums(multiplied.astype(np.float32), keys.astype(np.float32), SCALE)
    error, usual = (np.abs(own - expected).max() for own in (found, plain))
    assert error <= 2 * usual + (2e-4 if dtype in ROUNDED else 1e-6) * expected.max()


def test_neither_threads_nor_cuts_matter() -> None:
    cache, q = filled("bfloat16"), queries(64)
    before, sums = native.threads(), []
    for threads in range(1, native.cores() + 1):
        native.set_threads(threads)
        sums.append(weight_sums(cache, 0, q, ROWS, SCALE))
    native.set_threads(before)
    assert all(np.array_equal(sums[0], each) for each in sums)
    first = weight_sums(cache, 0, q[:, :32], ROWS - 32, SCALE)
    cut = weight_sums(cache, 0, q[:, 32:], ROWS, SCALE)
    cut[:, : ROWS - 32] += first
    assert np.allclose(cut, sums[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer": 2}, "layer 2 of 2"),
        ({"length": 501}, "rows"),
        ({"length": 20}, r"q must be \[H, 1\.\.20, 32\] with H a multiple of 2"),
        ({"q": np.zeros((5, 21, SIZE), np.float32)}, "with H a multiple of 2"),
        ({"q": np.zeros((HEADS, 21, 16), np.float32)}, "q must be"),
        ({"sums": np.zeros((GROUPS, 99), np.float32)}, r"sums must be \[kv_heads, length\]"),
    ],
)
def test_refused_calls(change: dict[str, Any], message: str) -> None:
    given = {"layer": 0, "length": 100, "q": queries(21), "scale": SCALE}
    given["sums"] = np.zeros((GROUPS, 100), np.float32)
    with pytest.raises(ValueError, match=message):
        filled("bfloat16").native.sum_weights(**(given | change))


def test_evicted_rows_are_refused() -> None:
    cache = filled("bfloat16")
    cache.native.evict(0, np.tile(np.arange(50, dtype=np.int32), (GROUPS, 1)), ROWS)
    sums = np.zeros((GROUPS, 50), np.float32)
    with pytest.raises(ValueError, match="rows are missing"):
        cache.native.sum_weights(0, 50, queries(4), SCALE, sums)
