"""Rows of prompts that outlive the process: blocks in a folder, next to the store in memory.

A text is cut into blocks of ROWS tokens at fixed places. A block's name is a hash over all tokens
up to its end and over all that its bits depend on, so who has the same beginning asks for the same
names, and nobody looks at what is inside. Blocks are written behind as a text grows, and read
before a prompt runs, by several threads while other requests run on.

Layers with states go on only from where a state was kept: such a length is a block of its own, with
the rows since the last whole block.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from suffice.cache import block_file, stored_rows
from suffice.cache.block_file import NAME, OWNER, Block, Damaged, Place
from suffice.cache.block_folder import ORDER, BlockFolder
from suffice.cache.kv import KVCache
from suffice.engine.write_behind import WriteBehind
from suffice.errors import OutOfMemory

ROWS = 64  # of a block: whole panels, and the keys of a sketch
STATE_ROWS = 32  # states are kept after multiples of this number of tokens
READERS = 4  # threads
_RATE = 0.3  # weight of a new measurement
_AGAIN = 16  # every 16th lookup tries to read again, though it seemed slower than computing


class Chain:
    """The names of a text's blocks, as it grows. `done` of them need not be written any more.

    `marks` are lengths after which states shall be kept; `states` has the names of kept states, by
    their lengths.
    """

    def __init__(self, key: bytes, names: Sequence[bytes], owner: bytes, done: int = 0) -> None:
        self._key = key
        self._owner = owner
        self._names = list(names)  # the root's, then those of blocks
        self.done = done
        self._began = time.time_ns()
        self.writes = False  # whether a block has been handed to the writer
        self.marks: set[int] = set()
        self.states: dict[int, bytes] = {}

    def copy(self) -> Chain:
        """Return the names for a text that begins alike."""
        return Chain(self._key, self._names, self._owner, self.done)

    @property
    def kept(self) -> list[bytes]:
        """The names of the blocks that are kept, from the text's beginning to its end."""
        ends = {ROWS * at: name for at, name in enumerate(self._names[1 : self.done + 1], 1)}
        both = [*ends.items(), *self.states.items()]
        return [name for _, name in sorted(both, key=lambda each: each[0])]

    def used(self, length: int) -> int:
        """Return when the block was used that ends after `length` tokens: see `BlockFolder`."""
        return self._began - length * ORDER

    def place(self, block: int, tokens: Sequence[int]) -> Place:
        """Return a block of a text."""
        return Place(self.name(block, tokens), block * ROWS, ROWS, self._owner)

    def state_place(self, length: int, tokens: Sequence[int]) -> Place:
        """Return the block with the states after `length` tokens of a text."""
        first = length // ROWS * ROWS
        return Place(self.state_name(length, tokens), first, length - first, self._owner)

    def name(self, block: int, tokens: Sequence[int]) -> bytes:
        """Return the name of a block of a text."""
        while len(self._names) <= block + 1:
            at = (len(self._names) - 1) * ROWS
            before = self._names[-1]
            self._names.append(_hash(self._key, b"rows", before, _plain(tokens[at : at + ROWS])))
        return self._names[block + 1]

    def state_name(self, length: int, tokens: Sequence[int]) -> bytes:
        """Return the name of the states after `length` tokens of a text."""
        whole = length // ROWS
        if whole:
            self.name(whole - 1, tokens)
        rest = _plain(tokens[whole * ROWS : length])
        return _hash(self._key, b"states", self._names[whole], rest)


def _hash(key: bytes, what: bytes, *parts: bytes) -> bytes:
    found = hashlib.blake2b(key=key, person=what, digest_size=NAME)
    for part in parts:
        found.update(part)
    return found.digest()


def _plain(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, "<i4").tobytes()


class Found(NamedTuple):
    """What a folder has of a text: its first `rows` rows, in these blocks; the last with states.

    `common` rows are there in all, those included after which no state was kept.
    """

    rows: int
    places: tuple[Place, ...]
    common: int


NOTHING = Found(0, (), 0)


@dataclass
class ReadCounts:
    """Tokens of prompts that were looked up, and those whose rows were read; and the seconds."""

    queries: int = 0
    hits: int = 0
    seconds: float = 0.0


class DiskPrefixes:
    """What one engine keeps in a folder and finds there.

    `depends_on` returns all that the bits of rows depend on besides the tokens, by the numbers of
    a technique and an adapter. `stateful`: whether layers keep states. `label` says in words whose
    rows they are.
    """

    def __init__(
        self,
        folder: BlockFolder,
        depends_on: Callable[[int, int], Mapping[str, str]],
        *,
        stateful: bool,
        label: str = "",
    ) -> None:
        self.folder = folder
        self.writer = WriteBehind(folder)
        self.counts = ReadCounts()
        self._depends_on = depends_on
        self._stateful = stateful
        self._label = label
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="suffice-prefix-reader")
        self._wake = threading.Event()
        self._loading: set[Load] = set()
        self._byte_seconds: float | None = None  # that reading takes
        self.token_seconds: float | None = None  # that a token of a prompt takes to compute
        self._sizes: dict[tuple[int, bool], int] = {}  # of files, by rows and whether with states
        self._left_out = 0  # lookups in which computing seemed faster

    def chain(self, technique: int, adapter: int, group: str) -> Chain:
        """Return the names of the blocks of a new text, for requests of a group alone."""
        depends = json.dumps(self._depends_on(technique, adapter)).encode()
        owner = hashlib.blake2b(depends, digest_size=OWNER).digest()
        self.folder.label(owner, self._label)
        root = _hash(self.folder.key, b"root", depends)
        name = _hash(self.folder.key, b"group", root, group.encode())
        return Chain(self.folder.key, [name], owner)

    def _has(self, place: Place, cache: KVCache, *, stateful: bool = False) -> bool:
        """Whether a block for such a cache is kept; a file that was cut is removed."""
        kind = place.rows, stateful
        if kind not in self._sizes:
            self._sizes[kind] = block_file.size_of(cache, place.rows, stateful=stateful)
        return self.folder.has(place.name, self._sizes[kind])

    def find(self, chain: Chain, cache: KVCache, tokens: Sequence[int], most: int) -> Found:
        """Return which blocks of a text are kept, for at most `most` rows of it in a cache."""
        self.counts.queries += len(tokens)
        places: list[Place] = []
        for block in range(len(tokens) // ROWS):
            place = chain.place(block, tokens)
            if place.first >= most or not self._has(place, cache):
                break
            places.append(place)
        if not self._stateful:
            rows = min(len(places) * ROWS, most)
            return Found(rows, tuple(places), rows)
        common = len(places) * ROWS
        longest = min(common + ROWS - 1, most)
        for length in range(longest // STATE_ROWS * STATE_ROWS, 0, -STATE_ROWS):
            last = chain.state_place(length, tokens)
            if self._has(last, cache, stateful=True):
                return Found(length, (*places[: length // ROWS], last), common)
        return Found(0, (), common)

    def pays(self, cache: KVCache, rows: int) -> bool:
        """Whether `rows` rows are read faster than computed, as far as known."""
        size = rows * cache.row_bytes + stored_rows.state_size(cache)
        if self._byte_seconds is None or self.token_seconds is None:
            return True
        if size * self._byte_seconds < rows * self.token_seconds:
            return True
        self._left_out += 1
        return self._left_out % _AGAIN == 0

    def load(self, cache: KVCache, found: Found) -> Load:
        """Begin to read blocks into a cache with memory for them, behind the rows that it has."""
        wanted = [each for each in found.places if each.first >= cache.length]
        load = Load(self, cache, found, wanted)
        self._loading.add(load)
        return load

    def stats(self) -> dict[str, int]:
        """Return the counts, by their names in `EngineStats`."""
        counts = self.folder.counts
        return {
            "disk_prefix_queries": self.counts.queries,
            "disk_prefix_hits": self.counts.hits,
            "disk_blocks_read": counts.read,
            "disk_bytes_read": counts.read_bytes,
            "disk_blocks_written": counts.written,
            "disk_bytes_written": counts.written_bytes,
            "disk_blocks_damaged": counts.damaged,
            "disk_blocks_failed": counts.failed,
            "disk_blocks_removed": counts.removed,
            "disk_bytes": self.folder.bytes,
        }

    def submit(self, load: Load, place: Place) -> Future[np.ndarray | bool]:
        """Read a block in a thread."""
        future = self._pool.submit(self._read, load, place)
        future.add_done_callback(lambda done: self._wake.set())
        return future

    def _read(self, load: Load, place: Place) -> np.ndarray | bool:
        """Read a block; return its states, or whether it is there."""
        if load.given_up:
            return False
        stateful = self._stateful and place is load.found.places[-1]
        with self.folder.opened(place.name) as file:
            if file is None:
                return False
            try:
                state = block_file.read(file, place, load.cache, stateful=stateful)
            except Damaged:
                self.folder.discard(place.name)
            except OSError:
                self.folder.fail()
            else:
                return True if state is None else state
        load.given_up = True
        return False

    @property
    def loading(self) -> bool:
        """Whether blocks are being read."""
        return bool(self._loading)

    def wait(self, seconds: float) -> None:
        """Wait until a block has been read, for at most so long."""
        self._wake.wait(seconds)
        self._wake.clear()

    def ended(self, load: Load, size: int) -> None:
        """Note that a load has ended, which read `size` bytes."""
        self._loading.discard(load)
        if not size:
            return
        seconds = time.perf_counter() - load.began
        each = seconds / size
        old = self._byte_seconds
        self._byte_seconds = each if old is None else old + _RATE * (each - old)
        self.counts.seconds += seconds
        self.folder.counts.read += len(load.wanted)
        self.folder.counts.read_bytes += size

    def offer(
        self, chain: Chain, cache: KVCache, tokens: Sequence[int], ready: int, room: float
    ) -> int:
        """Hand those of a text's first `ready` rows that are whole blocks to the writer.

        Ends once they have `room` bytes, and returns how many they have. What the writer has no
        room for is left for the next time.
        """
        size = 0
        while (chain.done + 1) * ROWS <= ready and size < room and self.writer.has_room:
            place = chain.place(chain.done, tokens)
            if not self._has(place, cache):
                spare = self.writer.spare(stored_rows.size_of(cache, ROWS))
                rows = stored_rows.taken(cache, place.first, ROWS, spare)
                block = Block(place, rows, used=chain.used(place.first + ROWS))
                if not chain.writes and (before := chain.kept):
                    self.writer.used(before)  # or what is written now would drive it out
                chain.writes = True
                self.writer.put(block)
                size += block.size
            chain.done += 1
        return size

    def offer_state(self, chain: Chain, cache: KVCache, tokens: Sequence[int]) -> None:
        """Hand the states that were just kept of a text to the writer."""
        length = cache.length
        if length % STATE_ROWS or not self.writer.has_room:
            return
        place = chain.state_place(length, tokens)
        chain.states[length] = place.name
        if self._has(place, cache, stateful=True):
            return
        if (state := stored_rows.taken_state(cache, length)) is not None:
            rows = stored_rows.taken(cache, place.first, place.rows)
            self.writer.put(Block(place, rows, state, chain.used(length)))


class Load:
    """Blocks on their way from the folder into a cache, behind the rows that it has."""

    def __init__(
        self, disk: DiskPrefixes, cache: KVCache, found: Found, wanted: Sequence[Place]
    ) -> None:
        self.cache = cache
        self.found = found
        self.wanted = wanted
        self.given_up = False  # what has not been begun is not read
        self.began = time.perf_counter()
        self._disk = disk
        self._before = cache.length
        self._futures = [disk.submit(self, place) for place in wanted]

    @property
    def done(self) -> bool:
        """Whether nothing is read any more."""
        return all(future.done() for future in reversed(self._futures))  # they end in order

    def cancel(self) -> None:
        """Read no more, and return once no thread uses the cache."""
        self.given_up = True
        self._end([])

    def finish(self) -> int:
        """Commit the rows up to the first block that was not there; return how many are new.

        It must be `done`.
        """
        results = [future.result() for future in self._futures]
        good = next((at for at, each in enumerate(results) if each is False), len(results))
        self._end(self.wanted[:good])
        state = results[-1] if good and not isinstance(results[-1], bool) else None
        whole = good == len(results)
        if isinstance(state, np.ndarray):
            rows = self.found.rows if whole else 0
        elif self.cache.stateful:
            rows = 0
        else:
            rows = self.found.rows if whole else self.wanted[good].first
        if rows <= self._before:
            return 0
        try:
            stored_rows.resume(self.cache, rows, state)
        except OutOfMemory:
            return 0
        self._disk.counts.hits += rows - self._before
        return rows - self._before

    def _end(self, good: Sequence[Place]) -> None:
        for future in self._futures:
            if not future.cancel():
                future.exception()
        size = sum(stored_rows.size_of(self.cache, each.rows) for each in good)
        self._disk.ended(self, size)
