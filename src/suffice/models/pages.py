"""Memory: weights moved into huge pages, and the heap trimmed.

A decode step reads every weight once. With pages of 4 KiB, address translation, and hardware
prefetchers that stop at each page's end, cost part of the memory bandwidth.

Cost     the bytes of the weights, plus those of the largest one while they are moved.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace

import torch

from suffice.quant import PackedLinear

__all__ = ["to_huge_pages", "trim_heap"]

HUGE = 2 << 20
LINE = 64


def to_huge_pages(weights: dict[str, PackedLinear | torch.Tensor]) -> None:
    """Move the packed matrices among `weights`, in their order, into one mapping of huge pages.

    Each is replaced and freed before the next one is moved. If the system has no huge pages, or the
    matrices do not fill one, they stay where they are.
    """
    packed = {name: each for name, each in weights.items() if isinstance(each, PackedLinear)}
    sizes = [-(-each.data.nbytes // LINE) * LINE for each in packed.values()]
    if sum(sizes) < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    memory = mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a system that does not know them
        return
    at = 0
    for name, size in zip(list(packed), sizes, strict=True):
        old = packed.pop(name)
        weights[name] = replace(old, data=_moved(old.data, memory, at))
        at += size


def trim_heap() -> None:
    """Return freed memory to the system.

    Code that allocates and frees matrices of many sizes otherwise leaves most of them in the C
    library's heap, in holes between live blocks.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc's
        library.malloc_trim(0)


def _moved(data: torch.Tensor, memory: mmap.mmap, at: int) -> torch.Tensor:
    """Return a copy of a tensor in `memory`, which lives as long as the copy does."""
    moved = torch.frombuffer(memory, dtype=data.dtype, count=data.numel(), offset=at)
    return moved.view(data.shape).copy_(data)
