"""Memory: weights in huge pages, and the heap trimmed.

A decode step reads every weight once. With pages of 4 KiB, address translation, and hardware
prefetchers that stop at each page's end, cost part of the memory bandwidth.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from suffice.quant import PackedLinear
from suffice.quant.panels import Allocate

HUGE = 2 << 20
LINE = 64
MAPPED = 64 << 20  # at a time; what is never written takes no memory


class HugePages:
    """Makes arrays that lie one after the other in huge pages; each begins a line of the cache.

    A mapping lives as long as any array in it. If the system has no huge pages, arrays are ordinary
    ones. `map_` returns new bytes, at least the number asked for, from which arrays are cut.
    """

    def __init__(self, map_: Callable[[int], np.ndarray | None] | None = None) -> None:
        self._map = _mapped if map_ is None else map_
        self._left = np.empty(0, np.uint8)

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an array of a shape and type whose content is arbitrary."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > len(self._left):
            mapped = self._map(size)
            if mapped is None:
                return np.empty(shape, dtype)
            self._left = mapped
        array = self._left[:size].view(dtype).reshape(shape)
        self._left = self._left[-(-size // LINE) * LINE :]
        return array


def to_huge_pages(
    weights: dict[str, PackedLinear | np.ndarray], allocate: Allocate | None = None
) -> None:
    """Move the packed matrices among `weights`, in their order, into huge pages.

    Each is replaced and freed before the next one is moved. Matrices that do not fill a huge page
    together stay where they are. `allocate` makes the new arrays, whatever their size.
    """
    packed = {name: each for name, each in weights.items() if isinstance(each, PackedLinear)}
    if allocate is None and sum(each.data.nbytes for each in packed.values()) < HUGE:
        return
    allocate = allocate or HugePages()
    for name in list(packed):
        old = packed.pop(name)
        data = allocate(old.data.shape, old.data.dtype)
        data[...] = old.data
        weights[name] = replace(old, data=data)


def trim_heap() -> None:
    """Return freed memory to the system.

    Code that allocates and frees matrices of many sizes otherwise leaves most of them in the C
    library's heap, in holes between live blocks.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc's
        library.malloc_trim(0)


def _mapped(size: int) -> np.ndarray | None:
    """Return at least `size` bytes, which begin a huge page; None if the system has none."""
    size = max(MAPPED, -(-size // HUGE) * HUGE)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a system that does not know them
        return None
    mapped = np.frombuffer(memory, np.uint8)
    begin = -mapped.ctypes.data % HUGE
    return mapped[begin : begin + size]
