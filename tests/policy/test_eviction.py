"""Eviction: the remaining rows are unchanged, and the memory is freed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from caches import empty_cache, held
from rows import SIZE
from suffice.cache import KV_DTYPES
from suffice.cache.kv import KVCache
from suffice.errors import InputError, OutOfMemory
from suffice.native import core

PAGE = 4096 + 2 * 16 * 2 * SIZE * 4  # to which a layer's memory is rounded, and a block of rows


def filled(rows: int, dtype: str = "bfloat16", arena: core.Arena | None = None) -> KVCache:
    cache = empty_cache(3, 2, SIZE, dtype, growth="step:rows=64", limit=4096, arena=arena)
    append(cache, rows)
    return cache


RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


def append(cache: KVCache, rows: int) -> None:
    cache.reserve(rows)
    for layer in range(3):
        cache.append(layer, *normal(2, 2, rows, SIZE))
    cache.advance(rows)


def chosen(rows: int, count: int) -> np.ndarray:
    return np.stack([np.sort(RANDOM.permutation(rows)[:count]) for _ in range(2)])


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_each_layer_keeps_its_own_rows_bit_for_bit(dtype: str) -> None:
    arena = core.Arena()
    cache = filled(300, dtype, arena)
    before = [held(cache, layer) for layer in range(3)]
    bytes_before = cache.bytes
    kept = {0: chosen(300, 17), 2: chosen(300, 160)}
    for layer, rows in kept.items():
        cache.evict(layer, rows)
    assert [cache.held(layer) for layer in range(3)] == [17, 300, 160]
    assert cache.length == 300
    freed = (283 + 140) * cache.row_bytes // 3
    assert abs(bytes_before - freed - cache.bytes) < 3 * PAGE
    assert arena.used == cache.bytes
    append(cache, 100)
    for layer in range(3):
        rows = kept.get(layer, np.tile(np.arange(300), (2, 1)))
        for old, new in zip(before[layer], held(cache, layer), strict=True):
            wanted = np.take_along_axis(old, rows[:, :, None], 1)
            assert np.array_equal(new[:, : rows.shape[1]], wanted)
            assert new.shape[1] == rows.shape[1] + 100
    cache.close()
    assert arena.used == 0
    append(cache, 20)
    assert [cache.held(layer) for layer in range(3)] == [20, 20, 20]


def test_drafts_and_forks_after_an_eviction() -> None:
    cache = filled(100)
    cache.evict(1, chosen(100, 10))
    cache.reserve(3)
    k, v = normal(2, 3, 2, 3, SIZE)
    cache.append_tentative(k, v, [-1, -1, 1])
    cache.commit([1, 2])
    assert (cache.length, cache.held(0), cache.held(1)) == (102, 102, 12)
    stored = k.astype(ml_dtypes.bfloat16).astype(np.float32)
    for layer in range(3):
        assert np.array_equal(held(cache, layer)[0][:, -2:], stored[layer, :, 1:])
    fork = cache.fork()
    assert [fork.held(layer) for layer in range(3)] == [102, 12, 102]
    for layer in range(3):
        assert np.array_equal(held(fork, layer)[0], held(cache, layer)[0])
    append(fork, 200)
    assert (cache.held(1), fork.held(1)) == (12, 212)


def test_what_was_evicted_cannot_be_gone_back_to() -> None:
    cache = filled(100)
    cache.evict(1, chosen(100, 10))
    append(cache, 5)
    cache.truncate(100)
    with pytest.raises(InputError) as error:
        cache.truncate(99)
    assert str(error.value) == (
        "cannot truncate to 99 tokens: some before 100 were evicted; a policy with rank_only=true "
        "keeps them"
    )
    cache.truncate(0)
    assert cache.held(1) == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([[1, 0], [0, 1]]), "kept rows must be ascending, in 0..9"),
        (np.array([[0, 10], [0, 1]]), "kept rows must be ascending, in 0..9"),
        (np.array([[0, 1]]), r"kept must be \[2, 1..10\]"),
    ],
)
def test_rows_that_are_none(rows: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled(10).evict(0, rows)


def test_an_eviction_needs_no_more_than_the_limit() -> None:
    whole = filled(128)
    arena = core.Arena(whole.bytes)
    cache = filled(128, arena=arena)
    with pytest.raises(OutOfMemory):
        cache.reserve(64)
    for layer in range(3):
        cache.evict(layer, chosen(128, 32))
    cache.reserve(64)
    assert arena.used <= arena.limit
