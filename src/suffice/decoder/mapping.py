"""Mappings of memory that begin at a huge page, which Python's own need not.

`to_private` replaces a mapped file by memory of this process, under the arrays that lie in it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref

import numpy as np

from suffice.decoder.pages import HUGE

PROT_READ, PROT_WRITE = 1, 2
MADV_HUGEPAGE, MADV_POPULATE_READ = 14, 22
PIECE = 32 << 20  # replaced at a time
_PROT_NONE = 0
_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 1, 2, 16, 32, 0x4000
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the C library with the types of its functions for mappings."""
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = library.mremap.restype = pointer
    library.mmap.argtypes = [pointer, size, integer, integer, integer, ctypes.c_long]
    library.mremap.argtypes = [pointer, size, size, integer, pointer]
    library.munmap.argtypes = [pointer, size]
    library.mprotect.argtypes = library.madvise.argtypes = [pointer, size, integer]
    return library


def check(failed: int) -> None:
    """Raise what the last call of the C library reported, if it failed.

    Raises:
        OSError: It failed.
    """
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def address_of(array: np.ndarray) -> int:
    """Return where an array begins."""
    return int(array.__array_interface__["data"][0])


def map_file(descriptor: int, offset: int, size: int, protection: int) -> np.ndarray:
    """Return bytes of a file, mapped where a huge page begins: else there can be none.

    Raises:
        OSError: There is no room.
    """
    library = libc()
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    whole = library.mmap(None, size + HUGE, _PROT_NONE, flags, -1, 0)
    check(whole == _MAP_FAILED)
    begin = whole + -whole % HUGE
    flags = _MAP_SHARED | _MAP_FIXED
    check(library.mmap(begin, size, protection, flags, descriptor, offset) == _MAP_FAILED)
    library.madvise(begin, size, MADV_HUGEPAGE)  # without huge pages the system refuses: no harm
    memory = (ctypes.c_uint8 * size).from_address(begin)
    ended = weakref.finalize(memory, library.munmap, whole, size + HUGE)
    ended.atexit = False  # threads may read it to the very end of the process
    return _bytes_of(memory)


def to_private(mapped: np.ndarray) -> None:
    """Replace what `map_file` returned by memory of this process alone, in huge pages.

    Others may read it at the same time: a piece is copied, and its copy takes its place at once.

    Raises:
        OSError: There is no memory; what was not replaced is still the file's.
    """
    for first in range(0, len(mapped), PIECE):
        _replace(mapped[first : first + PIECE])


def _replace(piece: np.ndarray) -> None:
    library, size = libc(), -(-len(piece) // mmap.PAGESIZE) * mmap.PAGESIZE
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    whole = library.mmap(None, size + HUGE, PROT_READ | PROT_WRITE, flags, -1, 0)
    check(whole == _MAP_FAILED)
    begin = whole + -whole % HUGE
    library.madvise(begin, size, MADV_HUGEPAGE)
    _bytes_of((ctypes.c_uint8 * len(piece)).from_address(begin))[:] = piece
    moves = _MREMAP_MAYMOVE | _MREMAP_FIXED
    moved = library.mremap(begin, size, size, moves, address_of(piece))
    failed = ctypes.get_errno() if moved == _MAP_FAILED else 0
    library.munmap(whole, begin - whole)
    library.munmap(begin + size, whole + HUGE - begin)
    if failed:
        library.munmap(begin, size)
        raise OSError(failed, os.strerror(failed))


def _bytes_of(memory: ctypes.Array[ctypes.c_uint8]) -> np.ndarray:
    return np.frombuffer(memoryview(memory).cast("B"), np.uint8)
