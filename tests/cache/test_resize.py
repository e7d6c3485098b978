"""Growth of large caches, whose rows move within their own memory: csrc/cache/resize.cpp."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from suffice.attention import ATTENTIONS
from suffice.backends.cpu.attention import attend
from suffice.cache import KV_DTYPES, alike
from suffice.cache.growth import Step, Upfront
from suffice.cache.kv import KVCache
from suffice.errors import OutOfMemory
from suffice.native import core
from suffice.policy import POLICIES

LAYERS, HEADS, SIZE, LIMIT, MORE = 2, 8, 128, 16384, 96
HUGE_PAGE = 2 << 20  # a layer of this size grows in place
QUEST = POLICIES.build("quest:budget=64,dense_layers=0")


def empty(dtype: str, rows: int, arena: core.Arena | None = None, **extras: bool) -> KVCache:
    """A cache that allocates `rows` rows at a time."""
    cache = KVCache(alike(LAYERS, HEADS, SIZE), growth=Step(rows), limit=LIMIT, key_dtype=dtype,
                    value_dtype=dtype, arena=arena, **extras)  # fmt: skip
    if extras.get("boxes"):
        QUEST.prepare(cache, [None] * LAYERS)
    return cache


def fill(cache: KVCache, rows: int, seed: int) -> None:
    cache.reserve(rows)
    random = np.random.default_rng(seed)
    for layer in range(LAYERS):
        cache.append(layer, *random.standard_normal((2, HEADS, rows, SIZE), np.float32))
    cache.advance(rows)


def least_rows(dtype: str) -> int:
    """Return how many rows make a layer large."""
    cache = empty(dtype, 16)
    return HUGE_PAGE * LAYERS // cache.row_bytes // 16 * 16 + 32


def outputs(cache: KVCache, bases: bool = False) -> list[np.ndarray]:
    """Return what a query gets of each layer, exactly, by the sketch and, if there are any, by
    bases."""
    query = np.random.default_rng(9).standard_normal((2 * HEADS, 1, SIZE), np.float32)
    rules = [None, ATTENTIONS.build("certified:eps=0.3").rule()]
    if bases:
        rules.append(ATTENTIONS.build("tiers:eps=0.5,bounded=true").rule())
    return [attend(rule, query, cache, layer, scale=0.3)[0] for rule in rules for layer in (0, 1)]


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(
    "extras", [{"sketch": True, "masses": True, "bases": True}, {"boxes": True}]
)
def test_all_data_of_the_rows_move(dtype: str, extras: dict[str, bool]) -> None:
    rows = least_rows(dtype)
    grown, whole = empty(dtype, rows, **extras), empty(dtype, rows + MORE, **extras)
    masses = np.random.default_rng(5).random((HEADS, rows), np.float32)
    for cache in (grown, whole):
        fill(cache, rows, seed=1)
        if not extras.get("boxes"):
            outputs(cache)  # makes the sketches
            cache.set_masses(1, masses)
    before = grown.bytes
    grown.growth = Step(rows + MORE)
    for cache in (grown, whole):
        fill(cache, 40, seed=2)
    assert grown.capacity == whole.capacity == rows + MORE and grown.bytes == whole.bytes > before
    for layer in range(LAYERS):
        assert np.array_equal(grown.keys(layer), whole.keys(layer))
        assert np.array_equal(grown.values(layer), whole.values(layer))
    if extras.get("masses"):
        expected = np.pad(masses, ((0, 0), (0, 40)))
        assert np.array_equal(grown.masses(1), expected)
    if extras.get("boxes"):
        query = np.random.default_rng(9).standard_normal((2 * HEADS, 1, SIZE), np.float32)
        for layer in range(LAYERS):
            one, other = (attend(None, query, each, layer, scale=0.3)[0] for each in (grown, whole))
            assert np.array_equal(one, other)
    else:
        assert all(map(np.array_equal, outputs(grown, True), outputs(whole, True)))


def test_spare_rows_are_zero() -> None:
    rows = least_rows("float32")
    cache = empty("float32", rows)
    fill(cache, rows - 20, seed=1)  # rows that are dropped leave nothing behind
    cache.native.resize(rows + MORE, rows - 30)
    for read in (cache.keys, cache.values):
        assert not read(1, rows + MORE)[:, rows - 16 :].any() and read(1)[:, : rows - 30].all()
    assert not cache.values(0, rows + MORE)[:, rows - 30 :].any()


def test_growing_needs_no_second_copy() -> None:
    rows = least_rows("bfloat16")
    arena = core.Arena(empty("bfloat16", 16).row_bytes * (rows + MORE) + (64 << 10))
    cache = empty("bfloat16", rows, arena)
    fill(cache, rows, seed=1)
    cache.growth = Upfront()
    cache.limit = rows + MORE
    cache.reserve(1)
    assert cache.capacity == rows + MORE and arena.used == cache.bytes


def test_a_small_cache_is_copied_into_memory_that_may_have_huge_pages() -> None:
    arena = core.Arena(empty("bfloat16", 16).row_bytes * (64 + MORE) + (64 << 10))
    cache = empty("bfloat16", 64, arena)
    fill(cache, 64, seed=1)
    cache.growth = Upfront()
    cache.limit = 64 + MORE
    with pytest.raises(OutOfMemory):  # the old memory of a layer would come on top
        cache.reserve(1)
    assert cache.capacity == 64 and arena.used == cache.bytes


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
sys.path[:0] = {path!r}
from test_resize import empty, fill, least_rows
from suffice.errors import OutOfMemory
rows = least_rows("float32")
cache = empty("float32", rows)
fill(cache, rows, seed=1)
keys, used = [cache.keys(layer) for layer in range(2)], cache.bytes
address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
more = cache.row_bytes // 2 * 8000  # of one layer, which fits, but not of the second
resource.setrlimit(resource.RLIMIT_AS, (address_space + more * 3 // 2, resource.RLIM_INFINITY))
try:
    cache.native.resize(rows + 8000, rows)
except Exception as error:
    assert type(error).__name__ == "OutOfMemory", repr(error)
else:
    raise SystemExit("there was memory")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert cache.bytes == used and cache.capacity == rows
assert all(np.array_equal(cache.keys(layer), keys[layer]) for layer in range(2))
cache.native.resize(rows + 64, rows)
assert all(np.array_equal(cache.keys(layer), keys[layer]) for layer in range(2))
print("unchanged")
"""


def test_a_growth_that_fails_in_the_middle_changes_nothing() -> None:
    code = LIMITED.format(path=[each for each in sys.path if each])
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert found.stdout == "unchanged\n", found.stderr
