"""Packed weights in memory that processes share, so that they exist once.

The memory is a file without a name (memfd): it ends with the last process that has it open, however
that ends. The first process packs its models into it and closes it: then its size is fixed, nobody
can map it for writing any more, and what the first process mapped is read-only. Others map it
read-only, and need no file of the model: what the shelf holds is kept whole, configuration and
tokenizer included.

    header      2 x uint64: where the description lies, and its bytes
    arrays      each begins a line of the cache
    description a pickle in which an array is its place, type and shape

The pickle is read by processes of one server alone, which get the file from the one that made it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import math
import os
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from suffice.decoder.mapping import PROT_READ, PROT_WRITE, address_of, check, libc, map_file
from suffice.decoder.pages import HUGE, HugePages
from suffice.quant.panels import Allocate

T = TypeVar("T")
CHUNK = 64 << 20  # mapped at a time
_HEADER = struct.Struct("<QQ")
_MADV_COLLAPSE = 25
_COLLAPSES = 8  # tries, while the system asks for another since pages are in use
_ADD_SEALS, _GET_SEALS = 1033, 1034  # of fcntl; Python names them on Linux alone
_SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 2, 4, 16


def can_share() -> bool:
    """Return whether this system has files without names that can be closed."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def new_memory() -> int:
    """Return the descriptor of a new, empty file without a name.

    Raises:
        OSError: There is no descriptor left.
    """
    return os.memfd_create("suffice-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def is_closed(descriptor: int) -> bool:
    """Return whether a shelf is complete: its processes may map it."""
    import fcntl

    return bool(fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK)


class Shelf:
    """Models in shared memory: packed into it, or taken from it if another process has.

    Without a descriptor nothing is shared, and arrays lie in this process's own huge pages.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._kept: dict[str, Any] = {}
        self._mapped: list[np.ndarray] = []  # for writing, until the shelf is closed
        self._starts: list[int] = []  # where they lie in the file
        self._end = 0
        self._allocate: Allocate | None = None
        self.attached = descriptor is not None and is_closed(descriptor)
        if self.attached:
            self._read()
        elif descriptor is not None:
            os.ftruncate(descriptor, 0)  # what a process left that died while it packed
            self._allocate = HugePages(self._chunk)
            self._header = self._allocate((_HEADER.size,), np.dtype(np.uint8))

    def kept(self, name: str, make: Callable[[Allocate | None], T]) -> T:
        """Return what the shelf has by a name, else make it.

        `make` gets what makes arrays on the shelf; None if nothing is shared.
        """
        if name not in self._kept:
            self._kept[name] = make(self._allocate)
        found: T = self._kept[name]
        return found

    def close(self) -> None:
        """Let others read what has been kept; from now on nobody can write it."""
        if self._descriptor is None or self.attached:
            return
        text = self._described()
        place = self._put(np.frombuffer(text, np.uint8))
        self._header[:] = np.frombuffer(_HEADER.pack(place, len(text)), np.uint8)
        for part in self._mapped:
            _collapse(part)
            check(libc().mprotect(address_of(part), part.nbytes, PROT_READ))
            part.flags.writeable = False
        _seal(self._descriptor)

    def _chunk(self, size: int) -> np.ndarray:
        """Return new bytes at the end of the file, mapped for writing."""
        assert self._descriptor is not None
        size = max(CHUNK, -(-size // HUGE) * HUGE)
        os.ftruncate(self._descriptor, self._end + size)
        part = map_file(self._descriptor, self._end, size, PROT_READ | PROT_WRITE)
        self._mapped.append(part)
        self._starts.append(self._end)
        self._end += size
        return part

    def _described(self) -> bytes:
        """Return the pickle of what is kept, whose arrays lie in the file, or are put there."""
        stream, places = io.BytesIO(), dict[int, tuple[np.ndarray, int]]()

        def place(array: np.ndarray) -> int:
            if id(array) not in places:
                known = self._place(array)
                places[id(array)] = array, self._put(array) if known is None else known
            return places[id(array)][1]

        class Pickler(pickle.Pickler):
            def persistent_id(self, obj: Any) -> Any:
                if type(obj) is not np.ndarray:
                    return None
                return place(obj), obj.dtype, obj.shape

        Pickler(stream, protocol=5).dump(self._kept)
        return stream.getvalue()

    def _place(self, array: np.ndarray) -> int | None:
        """Return where in the file an array lies; None if it does not."""
        if not array.flags.c_contiguous:
            return None
        at = address_of(array)
        for part, start in zip(self._mapped, self._starts, strict=True):
            if address_of(part) <= at and at + array.nbytes <= address_of(part) + part.nbytes:
                return start + at - address_of(part)
        return None

    def _put(self, array: np.ndarray) -> int:
        assert self._allocate is not None
        to = self._allocate(array.shape, array.dtype)
        to[...] = array
        found = self._place(to)
        assert found is not None, "the shelf's arrays lie in its file"
        return found

    def _read(self) -> None:
        assert self._descriptor is not None
        size = os.fstat(self._descriptor).st_size
        memory = map_file(self._descriptor, 0, size, PROT_READ)
        memory.flags.writeable = False

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, pid: Any) -> np.ndarray:
                at, dtype, shape = pid
                found = memory[at : at + math.prod(shape) * dtype.itemsize]
                array: np.ndarray = found.view(dtype).reshape(shape)
                return array

        begin, length = _HEADER.unpack(memory[: _HEADER.size].tobytes())
        text = memory[begin : begin + length].tobytes()
        self._kept = Unpickler(io.BytesIO(text)).load()


@functools.cache
def has_huge_pages() -> bool:
    """Return whether shared memory can have huge pages here, by trying it once."""
    if not can_share():
        return False
    descriptor = new_memory()
    try:
        os.ftruncate(descriptor, HUGE)
        tried = map_file(descriptor, 0, HUGE, PROT_READ | PROT_WRITE)
        tried[:] = 1
        _collapse(tried)
        return huge_shared_bytes(tried) == HUGE
    finally:
        os.close(descriptor)


def huge_shared_bytes(array: np.ndarray) -> int:
    """Return how much of the mapping that an array lies in has huge pages of shared memory."""
    found, address, inside = 0, address_of(array), False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *rest = line.split(maxsplit=2)
        if not name.endswith(":"):  # the head of a mapping
            first, last = (int(part, 16) for part in name.split("-"))
            inside = first <= address < last
        elif inside and name == "ShmemPmdMapped:":
            found += int(rest[0]) << 10
    return found


def _collapse(part: np.ndarray) -> None:
    """Make huge pages of what is mapped, where the system gave none at its first use."""
    for _ in range(_COLLAPSES):  # as far as it can
        failed = libc().madvise(address_of(part), part.nbytes, _MADV_COLLAPSE)
        if not failed or ctypes.get_errno() != errno.EAGAIN:
            return


def _seal(descriptor: int) -> None:
    """Fix a file's size, and its content where the system (Linux 5.1) can."""
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_FUTURE_WRITE)
    fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW)
