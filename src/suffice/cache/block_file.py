"""A file with a block: rows of a text as a cache stores them, and perhaps the states after them.

    | head, HEAD bytes | rows | states |

The head says whose rows they are (a name that stands for the whole text up to their end, and for
all that their bits depend on), where they belong and how many bytes there are, with checksums. What
does not fit, in any byte, is not this block. A file is written under another name and renamed, so
a reader sees all of it or nothing; a machine that stops may still leave a part, which does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from suffice.cache import stored_rows
from suffice.cache.kv import KVCache
from suffice.paths import PRIVATE

HEAD = 128  # bytes
NAME = 20  # bytes of a name
UNFINISHED = ".part"  # ends the name of a file that is being written
_MAGIC = b"sufficeB"
_VERSION = 1
OWNER = 8  # bytes that name an owner
_FIELDS = struct.Struct(f"<8sII{NAME}sI{OWNER}sQQQQQ")
_DIGEST = 16


class Place(NamedTuple):
    """Where a block belongs: its name, its first row, and how many rows it has.

    `owner` stands for the model and the way to run it, for those who look through a folder.
    """

    name: bytes
    first: int
    rows: int
    owner: bytes = bytes(OWNER)


class Damaged(Exception):  # noqa: N818
    """The file does not hold the block whose name it has."""


@dataclass(frozen=True)
class Block:
    """A block to be written; `used` is when its text was, in nanoseconds since the epoch."""

    place: Place
    rows: stored_rows.Taken
    state: stored_rows.Taken | None = None
    used: int | None = None

    @property
    def size(self) -> int:
        """The bytes of its file."""
        return HEAD + len(self.rows.data) + (0 if self.state is None else len(self.state.data))

    @property
    def parts(self) -> tuple[memoryview, ...]:
        """What its file has, in order."""
        states = () if self.state is None else (self.state.data.data,)
        return memoryview(self.head), self.rows.data.data, *states

    @property
    def head(self) -> bytes:
        """The file's first bytes."""
        state = self.state
        return _head(
            self.place,
            (len(self.rows.data), 0 if state is None else len(state.data)),
            (self.rows.checksum, 0 if state is None else state.checksum),
        )


def _head(place: Place, sizes: tuple[int, int], sums: tuple[int, int]) -> bytes:
    name, first, rows, owner = place
    total = HEAD + sum(sizes)
    fields = _FIELDS.pack(_MAGIC, _VERSION, rows, name, first, owner, *sizes, *sums, total)
    return _with_digest(fields.ljust(HEAD - _DIGEST, b"\0"))


def _with_digest(fields: bytes) -> bytes:
    return fields + hashlib.blake2b(fields, digest_size=_DIGEST).digest()


def write(path: Path, block: Block) -> None:
    """Write a block's file, which replaces what is there.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    part = path.with_name(f"{path.name}-{secrets.token_hex(8)}{UNFINISHED}")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    try:
        try:
            for left in block.parts:
                while left.nbytes:
                    left = left[os.write(file, left) :]
            if block.used is not None:
                os.utime(file, ns=(block.used, block.used))
        finally:
            os.close(file)
        part.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def size_of(cache: KVCache, rows: int, *, stateful: bool = False) -> int:
    """Return the bytes of the file of a block for such a cache."""
    states = stored_rows.state_size(cache) if stateful else 0
    return HEAD + stored_rows.size_of(cache, rows) + states


def read(
    file: int, place: Place, cache: KVCache, *, stateful: bool = False, at: int | None = None
) -> np.ndarray | None:
    """Read a block from a file's descriptor into a cache that has memory for it.

    Returns the states after its rows, uint8, if it is `stateful`. See `stored_rows.read`. `at`:
    where it begins in a file of several; None: the file has nothing else.

    Raises:
        Damaged: The file does not hold this block; its rows in the cache are zero.
        OSError: It cannot be read.
    """
    size = stored_rows.size_of(cache, place.rows)
    state_size = stored_rows.state_size(cache) if stateful else 0
    begins = at or 0
    head = os.pread(file, HEAD, begins)
    if len(head) != HEAD:
        raise Damaged
    *_, rows_sum, state_sum, _ = _FIELDS.unpack_from(head)
    wanted = _head(place, (size, state_size), (rows_sum, state_sum))
    if head != wanted or (at is None and os.fstat(file).st_size != HEAD + size + state_size):
        raise Damaged
    if stored_rows.read(cache, place.first, place.rows, file, begins + HEAD) != rows_sum:
        stored_rows.clear(cache, place.first, place.rows)
        raise Damaged
    if not stateful:
        return None
    state = _state(file, begins + HEAD + size, state_size)
    if stored_rows.checksum(state) != state_sum:
        raise Damaged
    return state


def owner_of(path: Path) -> tuple[bytes, int] | None:
    """Return the owner and the number of rows that a file's head says; None if it is no block."""
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD)
    except OSError:
        return None
    if len(head) != HEAD or head != _with_digest(head[:-_DIGEST]):
        return None
    _, _, rows, _, _, owner, *_ = _FIELDS.unpack_from(head)
    return owner, rows


def _state(file: int, offset: int, size: int) -> np.ndarray:
    """Return the bytes of states, as far as there are any."""
    found = np.zeros(size, np.uint8)
    left = found.data
    while left.nbytes and (got := os.preadv(file, [left], offset)):
        left, offset = left[got:], offset + got
    return found
