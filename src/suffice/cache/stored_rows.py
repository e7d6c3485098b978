"""Rows and states of a cache as bytes, just as they are stored, and back into another cache.

What follows from them (sketches, boxes) is made again when it is needed. Rows go in whole panels of
`BLOCK`. Only rows of caches that have lost none can be taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffice.cache.kv import KVCache
from suffice.errors import OutOfMemory
from suffice.native import core

Bytes = NDArray[np.uint8]


class Taken(NamedTuple):
    """Bytes with their checksum."""

    data: Bytes
    checksum: int


def size_of(cache: KVCache, rows: int) -> int:
    """Return the bytes of a number of rows, in all layers and heads."""
    return int(cache.native.bytes_of_rows(rows))


def taken(cache: KVCache, first: int, rows: int, spare: Bytes | None = None) -> Taken:
    """Return a copy of rows; in the memory of `spare`, which has their size, if it is given."""
    data = np.empty(size_of(cache, rows), np.uint8) if spare is None else spare
    return Taken(data, cache.native.export_rows(first, rows, data) if rows else 0)


def read(cache: KVCache, first: int, rows: int, file: int, offset: int) -> int | None:
    """Read rows from a file's descriptor into a cache that has memory for them.

    Returns their checksum; None if the file ends before, or cannot be read. Rows behind the
    committed ones are nobody's until `resume`, so several threads may read into one cache.
    """
    if not rows:
        return 0
    found = cache.native.read_rows(first, rows, file, offset)
    return None if found is None else int(found)


def clear(cache: KVCache, first: int, rows: int) -> None:
    """Zero rows behind the committed ones, which a damaged file may have left there."""
    if rows:
        cache.native.clear_rows(first, rows)


def state_size(cache: KVCache) -> int:
    """Return the bytes of a copy of the states; 0 if layers keep none."""
    return int(cache.native.state_bytes)


def taken_state(cache: KVCache, length: int) -> Taken | None:
    """Return a copy of the states that were kept after `length` tokens; None if none were."""
    if length not in cache.native.kept_states:
        return None
    floats = np.empty(state_size(cache) // 4, np.float32)
    cache.native.export_state(length, floats)
    data = floats.view(np.uint8)
    return Taken(data, core.checksum(data))


def checksum(data: Bytes) -> int:
    """Return the checksum of bytes."""
    return int(core.checksum(data))


def resume(cache: KVCache, length: int, state: Bytes | None = None) -> None:
    """Commit rows that were read: from now on the cache has `length` tokens.

    `state` is that after these tokens, for a cache that is new and keeps states.

    Raises:
        OutOfMemory: There is no memory for the states; the cache is unchanged.
    """
    if state is not None:
        try:
            cache.native.resume_state(length, state.view(np.float32))
        except core.OutOfMemory as error:
            raise OutOfMemory(str(error)) from None
    cache.length = length
