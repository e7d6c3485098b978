"""Eviction: the remaining rows are unchanged, and the memory is freed."""

from __future__ import annotations

import pytest
import torch

from caches import empty_cache
from rows import SIZE
from suffice.cache import KV_DTYPES
from suffice.cache.kv import KVCache
from suffice.errors import InputError, OutOfMemory
from suffice.native import core

PAGE = 4096 + 2 * 16 * 2 * SIZE * 4  # to which a layer's memory is rounded, and a block of rows


def filled(rows: int, dtype: str = "bfloat16", arena: core.Arena | None = None) -> KVCache:
    torch.manual_seed(rows)
    cache = empty_cache(3, 2, SIZE, dtype, growth="step:rows=64", limit=4096, arena=arena)
    append(cache, rows)
    return cache


def append(cache: KVCache, rows: int) -> None:
    cache.reserve(rows)
    for layer in range(3):
        cache.append(layer, torch.randn(2, rows, SIZE), torch.randn(2, rows, SIZE))
    cache.advance(rows)


def chosen(rows: int, count: int) -> torch.Tensor:
    return torch.stack([torch.randperm(rows)[:count].sort().values for _ in range(2)])


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_each_layer_keeps_its_own_rows_bit_for_bit(dtype: str) -> None:
    arena = core.Arena()
    cache = filled(300, dtype, arena)
    before = [(cache.keys(layer), cache.values(layer)) for layer in range(3)]
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
        rows = kept.get(layer, torch.arange(300).expand(2, -1))
        for old, new in zip(before[layer], (cache.keys(layer), cache.values(layer)), strict=True):
            index = rows[:, :, None].expand(-1, -1, SIZE)
            assert torch.equal(new[:, : rows.shape[1]], old.gather(1, index))
            assert new.shape[1] == rows.shape[1] + 100
    cache.close()
    assert arena.used == 0
    append(cache, 20)
    assert [cache.held(layer) for layer in range(3)] == [20, 20, 20]


def test_drafts_and_forks_after_an_eviction() -> None:
    cache = filled(100)
    cache.evict(1, chosen(100, 10))
    cache.reserve(3)
    k, v = torch.randn(3, 2, 3, SIZE), torch.randn(3, 2, 3, SIZE)
    cache.append_tentative(k, v, [-1, -1, 1])
    cache.commit([1, 2])
    assert (cache.length, cache.held(0), cache.held(1)) == (102, 102, 12)
    for layer in range(3):
        assert torch.equal(cache.keys(layer)[:, -2:], k[layer, :, 1:].bfloat16().float())
    fork = cache.fork()
    assert [fork.held(layer) for layer in range(3)] == [102, 12, 102]
    for layer in range(3):
        assert torch.equal(fork.keys(layer), cache.keys(layer))
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
        (torch.tensor([[1, 0], [0, 1]]), "kept rows must be ascending, in 0..9"),
        (torch.tensor([[0, 10], [0, 1]]), "kept rows must be ascending, in 0..9"),
        (torch.tensor([[0, 1]]), r"kept must be \[2, 1..10\]"),
    ],
)
def test_rows_that_are_none(rows: torch.Tensor, message: str) -> None:
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
