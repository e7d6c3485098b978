"""A block's file gives back a cache's bytes, or nothing: whatever happened to it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffice.cache import GROWTHS, KV_DTYPES, alike, block_file, stored_rows
from suffice.cache.block_file import HEAD, NAME, Block, Damaged, Place
from suffice.cache.kv import KVCache
from suffice.errors import InputError
from suffice.native import core

LAYERS, HEADS, SIZE, ROWS = 2, 2, 32, 64
TYPES = [*KV_DTYPES, "int8/kmeans4", "float32/bases", "joint"]
MUTATIONS = int(os.environ.get("SUFFICE_MUTATIONS", "1200")) // len(TYPES)
each_type = pytest.mark.parametrize("dtype", TYPES)


def cache_of(dtype: str, rows: int = 2 * ROWS, states: bool = False) -> KVCache:
    """A cache with memory for some rows."""
    keys, _, values = dtype.partition("/")
    bases = values == "bases"
    joint = 16 if dtype == "joint" else 0
    keys = "bfloat16" if joint else keys
    cache = KVCache(
        alike(LAYERS, HEADS, SIZE),
        growth=GROWTHS.build("step:rows=16"),
        limit=512,
        key_dtype=keys,
        value_dtype=keys if bases or not values else values,
        bases=bases,
        joint=joint,
        states=[core.StateShape(2, 1, 16, 16, False, 64, 4)] if states else (),
    )
    cache.reserve(rows)
    return cache


def filled(dtype: str, seed: int = 0, states: bool = False) -> KVCache:
    """A cache with rows of very different sizes."""
    cache = cache_of(dtype, states=states)
    chance = np.random.default_rng(seed)
    for layer in range(LAYERS):
        k, v = chance.standard_normal((2, HEADS, 2 * ROWS, SIZE), np.float32)
        cache.append(layer, k, None if dtype == "joint" else v)
    cache.advance(2 * ROWS)
    return cache


def name(at: int) -> bytes:
    return bytes([at]) * NAME


def block_of(cache: KVCache, at: int = 0) -> Block:
    return Block(Place(name(at), at * ROWS, ROWS), stored_rows.taken(cache, at * ROWS, ROWS))


def read(path: Path, place: Place, cache: KVCache, stateful: bool = False) -> np.ndarray | None:
    file = os.open(path, os.O_RDONLY)
    try:
        return block_file.read(file, place, cache, stateful=stateful)
    finally:
        os.close(file)


@each_type
def test_rows_come_back_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    cache, other = filled(dtype), cache_of(dtype)
    for at in (1, 0):
        block = block_of(cache, at)
        block_file.write(tmp_path / "it", block)
        assert (tmp_path / "it").stat().st_size == block.size == HEAD + len(block.rows.data)
        assert (tmp_path / "it").stat().st_mode & 0o777 == 0o600
        read(tmp_path / "it", block.place, other)
    stored_rows.resume(other, 2 * ROWS)
    assert [each.name for each in tmp_path.iterdir()] == ["it"], "nothing unfinished is left"
    for layer in range(LAYERS):
        assert np.array_equal(cache.keys(layer), other.keys(layer))
        assert np.array_equal(cache.values(layer), other.values(layer))
    for first in (0, 16, 48):  # all bytes, those that `keys` does not show included
        one, two = (stored_rows.taken(each, first, 2 * ROWS - first) for each in (cache, other))
        assert one.checksum == two.checksum and np.array_equal(one.data, two.data)


@each_type
def test_a_block_takes_hardly_more_than_its_rows(dtype: str) -> None:
    cache = filled(dtype)
    own = len(stored_rows.taken(cache, 0, ROWS).data)
    assert own == ROWS * cache.row_bytes


def test_other_growths_have_other_places_and_the_same_bytes(tmp_path: Path) -> None:
    cache, other = filled("int8"), cache_of("int8", rows=333)
    for at in (0, 1):
        block_file.write(tmp_path / "it", block_of(cache, at))
        read(tmp_path / "it", Place(name(at), at * ROWS, ROWS), other)
    stored_rows.resume(other, 2 * ROWS)
    assert np.array_equal(cache.keys(1), other.keys(1))


def mutations(whole: bytes, foreign: list[bytes], chance: random.Random) -> Iterator[bytes]:
    """Yield a file as it must not be: with bits, cuts, additions, swaps, or of another block."""
    while True:
        kind, found = chance.randrange(7), bytearray(whole)
        at = chance.randrange(len(whole))
        if kind == 0:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[at:]
        elif kind == 2:
            found += bytes(chance.randrange(1, 200))
        elif kind == 3:  # two ranges change places
            size = chance.choice((1, 8, 16, 64, 512))
            to = chance.randrange(len(whole) - size)
            at = min(at, len(whole) - size)
            found[at : at + size], found[to : to + size] = (
                found[to : to + size],
                found[at : at + size],
            )
        elif kind == 4:  # a page that was never written
            found[at // 512 * 512 : at // 512 * 512 + 512] = bytes(
                len(found[at // 512 * 512 : at // 512 * 512 + 512])
            )
        elif kind == 5:  # of another block
            found = bytearray(chance.choice(foreign))
        else:  # a part of another block, or its head
            other = chance.choice(foreign)
            cut = chance.choice((HEAD, at))
            found = bytearray(other[:cut] + whole[cut:])
        if bytes(found) != whole:
            yield bytes(found)


@each_type
def test_a_damaged_file_gives_nothing(dtype: str, tmp_path: Path) -> None:
    """What is read of it is zeroed: it might not be numbers."""
    cache, other = filled(dtype), cache_of(dtype)
    path, chance = tmp_path / "it", random.Random(dtype)
    block = block_of(cache, 1)
    foreign = []
    for each in (block_of(cache, 0), block_of(filled(dtype, 1), 1)):
        block_file.write(path, each)
        foreign.append(path.read_bytes())
    moved = Block(block.place._replace(name=name(9)), block.rows)  # of another fingerprint
    block_file.write(path, moved)
    foreign.append(path.read_bytes())
    block_file.write(path, block)
    whole = path.read_bytes()
    # The second foreign block has this name and place: it is damaged only if it is mixed.
    same = foreign.pop(1)
    empty = stored_rows.taken(other, ROWS, ROWS).data
    for _, found in zip(range(MUTATIONS), mutations(whole, foreign, chance), strict=False):
        if found in (whole, same):
            continue
        path.write_bytes(found)
        with pytest.raises(Damaged):
            read(path, block.place, other)
        assert np.array_equal(stored_rows.taken(other, ROWS, ROWS).data, empty)
    path.write_bytes(whole)
    read(path, block.place, other)


def test_a_checksum_that_sees_nothing_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = stored_rows.read
    right = stored_rows.taken(filled("int8"), ROWS, ROWS).checksum
    monkeypatch.setattr(stored_rows, "read", lambda *given: genuine(*given) and right)
    with pytest.raises(pytest.fail.Exception):
        test_a_damaged_file_gives_nothing("int8", tmp_path)


def test_a_checksum_differs_for_any_word_and_any_order() -> None:
    chance = np.random.default_rng(0)
    data = chance.integers(0, 256, 1000, np.uint8)
    sums = {stored_rows.checksum(data)}
    for at in range(0, 1000, 7):
        changed = data.copy()
        changed[at] ^= 0x80  # the highest bit, which a product moves nowhere
        sums.add(stored_rows.checksum(changed))
        changed[(at + 128) % 1000] ^= 0x80
        sums.add(stored_rows.checksum(changed))
    assert len(sums) == 1 + 2 * 143
    for length in (0, 1, 63, 64, 65):
        assert stored_rows.checksum(data[:length]) != stored_rows.checksum(data[: length + 1])
    zeros = np.zeros(200, np.uint8)
    assert len({stored_rows.checksum(zeros[:length]) for length in range(200)}) == 200


def test_states_come_back(tmp_path: Path) -> None:
    cache = cache_of("float32", states=True)
    size = stored_rows.state_size(cache)
    state = np.random.default_rng(1).standard_normal(size // 4).astype(np.float32).view(np.uint8)
    stored_rows.resume(cache, 48, state)
    assert (cache.length, cache.reachable(50), cache.reachable(47)) == (48, 48, 0)
    found = stored_rows.taken_state(cache, 48)
    assert found is not None and np.array_equal(found.data, state)
    assert stored_rows.taken_state(cache, 47) is None
    place = Place(name(1), 32, 16)
    block_file.write(tmp_path / "it", Block(place, stored_rows.taken(cache, 32, 16), found))
    other = cache_of("float32", states=True)
    again = read(tmp_path / "it", place, other, stateful=True)
    assert again is not None and np.array_equal(again, state)
    with pytest.raises(Damaged):
        read(tmp_path / "it", place, cache_of("float32"))
    whole = bytearray((tmp_path / "it").read_bytes())
    whole[-5] ^= 1
    (tmp_path / "it").write_bytes(whole)
    with pytest.raises(Damaged):
        read(tmp_path / "it", place, cache_of("float32", states=True), stateful=True)


def test_rows_of_no_cache_are_refused() -> None:
    cache = filled("float32")
    for first, rows in ((1, 16), (0, 15), (-16, 16), (128, 16)):
        with pytest.raises(ValueError, match="rows"):
            stored_rows.taken(cache, first, rows)
    with pytest.raises((ValueError, InputError)):
        cache.native.export_rows(0, 16, np.empty(3, np.uint8))
