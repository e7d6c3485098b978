"""The laws of the KV cache, for every growth and storage type, and against broken caches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suffice.cache import GROWTHS, KV_DTYPES, alike
from suffice.cache.growth import Upfront
from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.errors import InputError, OutOfMemory
from suffice.native import core

LAYERS, HEADS, SIZE, LIMIT = 2, 2, 16, 70
SPELLINGS = ["bmc:rows=8", "bmc:ratio=0.5", "iterative", "upfront", "step:5", "double"]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
Law = Callable[[type[KVCache], str, str, str], None]


def cache_of(
    kind: type[KVCache], growth: str, keys: str = "float32", values: str = "float32"
) -> KVCache:
    return kind(
        alike(LAYERS, HEADS, SIZE),
        growth=GROWTHS.build(growth),
        limit=LIMIT,
        key_dtype=keys,
        value_dtype=values,
    )


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [L, G, count, D] of very different sizes."""
    random = torch.Generator().manual_seed(seed)
    both = torch.randn(2, LAYERS, HEADS, count, SIZE, generator=random)
    both *= 10 ** torch.randint(-3, 4, (2, LAYERS, HEADS, count, 1), generator=random).float()
    return both[0], both[1]


def append(cache: KVCache, k: torch.Tensor, v: torch.Tensor) -> None:
    cache.reserve(k.shape[2])
    for layer in range(LAYERS):
        cache.append(layer, k[layer], v[layer])
    cache.advance(k.shape[2])


def stored(x: torch.Tensor, dtype: str, part: str) -> torch.Tensor:
    """What a row of "keys" or "values" must read as after being stored in `dtype`."""
    if dtype == "int8":
        scale = x.abs().amax(-1, keepdim=True) / 127
        return torch.round(x * torch.where(scale > 0, 1 / scale, 0)) * scale
    if dtype in ("kmeans4", "planes"):  # as a cache of that row alone reads it; tests of their own
        # say how that is
        return alone(x.reshape(-1, x.shape[-1]), part, dtype).view(x.shape)
    return x.to(getattr(torch, dtype)).float()


def alone(rows: torch.Tensor, part: str, dtype: str) -> torch.Tensor:
    """Return rows [N, D] as a cache reads them that never held another."""
    found = []
    for row in rows[:, None, None]:
        cache = KVCache(
            alike(1, 1, SIZE), growth=Upfront(), limit=1, key_dtype=dtype, value_dtype=dtype
        )
        cache.reserve(1)
        cache.append(0, row, row)
        found.append(torch.from_numpy(getattr(cache, part)(0, 1)).flatten())
    return torch.stack(found) if found else rows


def view(cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.stack([torch.from_numpy(cache.keys(layer)) for layer in range(LAYERS)])
    values = torch.stack([torch.from_numpy(cache.values(layer)) for layer in range(LAYERS)])
    return keys, values


def same(one: KVCache, other: KVCache) -> None:
    assert one.length == other.length
    assert one.tentative == other.tentative
    assert one.visible() == other.visible()
    for mine, theirs in zip(view(one), view(other), strict=True):
        assert torch.equal(mine, theirs)


def appended_is_viewed(kind: type[KVCache], growth: str, keys: str, values: str) -> None:
    cache = cache_of(kind, growth, keys, values)
    k, v = rows(LIMIT, 1)
    at = 0
    for count in (1, 15, 1, 1, 3, 20, 16, 13):
        append(cache, k[:, :, at : at + count], v[:, :, at : at + count])
        at += count
        assert cache.length == at <= cache.capacity <= LIMIT
        seen = view(cache)
        assert torch.equal(seen[0], stored(k[:, :, :at], keys, "keys"))
        assert torch.equal(seen[1], stored(v[:, :, :at], values, "values"))


def rolled_back_never_happened(kind: type[KVCache], growth: str, keys: str, values: str) -> None:
    cache, plain = cache_of(kind, growth, keys, values), cache_of(KVCache, growth, keys, values)
    for each in (cache, plain):
        append(each, *rows(13, 1))
    cache.reserve(4)
    cache.append_tentative(*rows(3, 2), [-1, 0, 0])
    cache.append_tentative(*rows(1, 3), [2])
    cache.rollback()
    same(cache, plain)
    for each in (cache, plain):
        append(each, *rows(5, 4))
    same(cache, plain)


def committed_is_appended(kind: type[KVCache], growth: str, keys: str, values: str) -> None:
    #  0 - 2 - 4      the path 1, 3, 5 is kept
    #  1 - 3 - 5
    tree, path = [-1, -1, 0, 1, 2, 3], [1, 3, 5]
    cache, plain = cache_of(kind, growth, keys, values), cache_of(KVCache, growth, keys, values)
    for each in (cache, plain):
        append(each, *rows(13, 1))
    k, v = rows(len(tree), 2)
    cache.reserve(len(tree))
    cache.append_tentative(k, v, tree)
    assert cache.visible() == [0b1, 0b10, 0b101, 0b1010, 0b10101, 0b101010]
    cache.commit(path)
    append(plain, k[:, :, path], v[:, :, path])
    same(cache, plain)
    for each in (cache, plain):
        append(each, *rows(6, 3))
    same(cache, plain)


def truncated_was_never_longer(kind: type[KVCache], growth: str, keys: str, values: str) -> None:
    cache, plain = cache_of(kind, growth, keys, values), cache_of(KVCache, growth, keys, values)
    k, v = rows(29, 1)
    append(cache, k, v)
    append(plain, k[:, :, :11], v[:, :, :11])
    cache.truncate(11)
    same(cache, plain)
    for each in (cache, plain):
        append(each, *rows(20, 2))
    same(cache, plain)


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES


def accounted_is_mapped(kind: type[KVCache], growth: str, keys: str, values: str) -> None:
    arena, room, noise = core.Arena(), 65_536, 1 << 20
    before = mapped_bytes()
    cache = kind(
        alike(LAYERS, 8, 128),
        growth=Upfront(),
        limit=room,
        key_dtype=keys,
        value_dtype=values,
        arena=arena,
    )
    cache.reserve(1)  # hundreds of MB, mapped and never touched
    assert cache.bytes == arena.used
    assert cache.bytes % PAGE_BYTES == 0
    assert 0 <= cache.bytes - cache.row_bytes * cache.capacity < noise
    assert abs(mapped_bytes() - before - cache.bytes) < noise
    del cache
    assert arena.used == 0
    assert abs(mapped_bytes() - before) < noise


LAWS: list[Law] = [
    appended_is_viewed,
    rolled_back_never_happened,
    committed_is_appended,
    truncated_was_never_longer,
    accounted_is_mapped,
]


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("growth", SPELLINGS)
@pytest.mark.parametrize("law", LAWS)
def test_law(law: Law, growth: str, dtype: str) -> None:
    law(KVCache, growth, dtype, dtype)


@pytest.mark.parametrize("law", LAWS)
def test_law_with_keys_and_values_of_different_types(law: Law) -> None:
    law(KVCache, "bmc:rows=8", "int8", "bfloat16")
    law(KVCache, "bmc:rows=8", "float16", "float32")
    law(KVCache, "bmc:rows=8", "planes", "kmeans4")
    law(KVCache, "bmc:rows=8", "bfloat16", "planes")


class Swaps(KVCache):
    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        super().append(layer, v, k)


class LosesOnGrowth(KVCache):
    def reserve(self, rows: int) -> None:
        self.length, kept = max(self.length - 1, 0), self.length
        super().reserve(rows + kept - self.length)
        self.length = kept


class KeepsDrafts(KVCache):
    def rollback(self) -> None:
        self.length += self.tentative
        super().rollback()


class WritesDraftsOverRows(KVCache):
    def append_tentative(self, k: torch.Tensor, v: torch.Tensor, parents: list[int]) -> None:
        super().append_tentative(k, v, parents)
        self.native.move_row(self.length, self.length - 1)


class CommitsInPlace(KVCache):
    def commit(self, path: list[int]) -> None:
        self.rollback()
        self.length += len(path)


class TruncatesOneTooMany(KVCache):
    def truncate(self, rows: int) -> None:
        super().truncate(rows - 1)


class TruncatesNothing(KVCache):
    def truncate(self, rows: int) -> None:
        super().truncate(self.length)


class CountsRowsOnly(KVCache):
    @property
    def bytes(self) -> int:
        return self.row_bytes * self.length


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        (appended_is_viewed, Swaps),
        (appended_is_viewed, LosesOnGrowth),
        (rolled_back_never_happened, KeepsDrafts),
        (rolled_back_never_happened, WritesDraftsOverRows),
        (committed_is_appended, CommitsInPlace),
        (truncated_was_never_longer, TruncatesOneTooMany),
        (truncated_was_never_longer, TruncatesNothing),
        (accounted_is_mapped, CountsRowsOnly),
    ],
)
def test_law_bites(law: Law, broken: type[KVCache]) -> None:
    with pytest.raises(AssertionError):
        law(broken, "bmc:rows=8", "float32", "float32")


def tree(draw: st.DrawFn, count: int) -> tuple[list[int], list[int]]:
    """A forest of drafts and one ascending path in it that starts at a root."""
    parents = [draw(st.integers(-1, i - 1)) for i in range(count)]
    node, path = draw(st.integers(-1, count - 1)), []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return parents, path[::-1]


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    growth=st.sampled_from(SPELLINGS),
    keys=st.sampled_from(KV_DTYPES),
    values=st.sampled_from(KV_DTYPES),
)
def test_any_history_holds_what_a_list_would(
    data: st.DataObject, growth: str, keys: str, values: str
) -> None:
    cache = cache_of(KVCache, growth, keys, values)
    k, v = rows(0, 0)
    for seed in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["append", "commit", "rollback", "truncate", "fork"]))
        count = data.draw(st.integers(0, min(12, LIMIT - cache.length)))
        new_k, new_v = rows(count, seed)
        if action == "append":
            append(cache, new_k, new_v)
        elif action == "truncate":
            kept = data.draw(st.integers(0, cache.length))
            cache.truncate(kept)
            k, v = k[:, :, :kept], v[:, :, :kept]
            continue
        elif action == "fork":
            cache = cache.fork()
            continue
        else:
            parents, path = tree(data.draw, count)
            cache.reserve(count)
            cache.append_tentative(new_k, new_v, parents)
            path = path if action == "commit" else []
            cache.commit(path) if action == "commit" else cache.rollback()
            new_k, new_v = new_k[:, :, path], new_v[:, :, path]
        k, v = torch.cat([k, new_k], dim=2), torch.cat([v, new_v], dim=2)
        assert cache.length == k.shape[2] <= cache.capacity <= LIMIT
        assert cache.tentative == 0
    seen = view(cache)
    assert torch.equal(seen[0], stored(k, keys, "keys"))
    assert torch.equal(seen[1], stored(v, values, "values"))


@given(
    x=st.lists(st.floats(width=32, allow_nan=False), min_size=SIZE, max_size=SIZE),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_any_value_is_stored_as_torch_would(x: list[float], dtype: str) -> None:
    cache = cache_of(KVCache, "upfront", dtype, dtype)
    row = torch.tensor(x).expand(LAYERS, HEADS, 1, SIZE).contiguous()
    append(cache, row, -row)
    seen = view(cache)
    assert torch.equal(seen[0], stored(row, dtype, "keys"))
    assert torch.equal(seen[1], stored(-row, dtype, "values"))


def test_a_fork_and_its_origin_grow_apart() -> None:
    one = cache_of(KVCache, "step:5").fork()  # a fork of nothing
    append(one, *rows(7, 1))
    two, plain = one.fork(), cache_of(KVCache, "step:5")
    append(plain, *rows(7, 1))
    append(one, *rows(9, 2))
    same(two, plain)
    append(two, *rows(3, 3))
    append(plain, *rows(3, 3))
    same(two, plain)
    assert one.length == 16


def test_a_fork_leaves_its_origins_drafts() -> None:
    one = cache_of(KVCache, "upfront")
    append(one, *rows(7, 1))
    one.draft([-1, 0, -1])
    other = one.fork()
    assert (other.tentative, other.visible()) == (0, [])
    assert (one.tentative, one.visible()) == (3, [0b1, 0b11, 0b100])


def test_drafts_are_cut_to_the_spare_rows() -> None:
    cache = cache_of(KVCache, "step:16")
    append(cache, *rows(13, 1))
    assert (cache.spare, cache.room(8), cache.room(2)) == (3, 3, 2)
    with pytest.raises(InputError, match=r"^4 drafts do not fit: 3 rows are spare$"):
        cache.append_tentative(*rows(4, 2), [-1, 0, 1, 2])
    assert cache.tentative == 0 and cache.visible() == []
    cache.append_tentative(*rows(3, 2), [-1, 0, 1])
    assert (cache.spare, cache.room(1)) == (0, 0)
    cache.reserve(20)
    assert cache.spare == 32 and cache.room(32) == MAX_TENTATIVE - 3
    cache.commit([0, 1, 2])
    assert torch.equal(view(cache)[0][:, :, 13:], rows(3, 2)[0])


def test_running_out_of_memory_loses_nothing() -> None:
    arena = core.Arena(cache_of(KVCache, "upfront").row_bytes * 64 + (1 << 16))
    cache = KVCache(alike(LAYERS, HEADS, SIZE), growth=Upfront(), limit=32, key_dtype="float32",
                    value_dtype="float32", arena=arena)  # fmt: skip
    append(cache, *rows(20, 1))
    used = arena.used
    cache.limit = 10_000
    with pytest.raises(OutOfMemory) as error:
        cache.reserve(50)
    assert "\n" not in str(error.value)
    assert arena.used == used == cache.bytes
    assert torch.equal(view(cache)[0], rows(20, 1)[0])


def test_a_tight_cache_takes_no_more_than_whole_blocks() -> None:
    cache = cache_of(KVCache, "step:rows=64")
    append(cache, *rows(3, 1))
    assert cache.capacity == 64
    cache.tight = True
    append(cache, *rows(62, 2))
    assert cache.capacity == LIMIT == 70, "the limit comes before the next block"
    small = cache_of(KVCache, "step:rows=64")
    small.tight = True
    append(small, *rows(17, 3))
    assert small.capacity == 32
