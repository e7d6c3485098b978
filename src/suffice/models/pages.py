"""Memory: weights one after the other in huge pages, and what is freed given back.

A decode step reads every weight once. In pages of 4 KiB the translation of addresses, and hardware
that stops fetching ahead at each page's end, take a part of the memory's rate.

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

    Each is replaced and let go before the next. Where the system has no such pages, or the matrices
    do not fill one, they stay where they are.
    """
    packed = {name: each for name, each in weights.items() if isinstance(each, PackedLinear)}
    sizes = [-(-each.data.nbytes // LINE) * LINE for each in packed.values()]
    if sum(sizes) < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    memory = mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a system that knows of none
        return
    at = 0
    for name, size in zip(list(packed), sizes, strict=True):
        old = packed.pop(name)
        weights[name] = replace(old, data=_moved(old.data, memory, at))
        at += size


def trim_heap() -> None:
    """Give memory that was freed back to the system.

    Work that allocates and frees matrices of many sizes otherwise leaves most of them with the C
    library, in holes between what is still in use.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc's
        library.malloc_trim(0)


def _moved(data: torch.Tensor, memory: mmap.mmap, at: int) -> torch.Tensor:
    """Return a copy of a tensor in `memory`, which lives as long as the copy does."""
    moved = torch.frombuffer(memory, dtype=data.dtype, count=data.numel(), offset=at)
    return moved.view(data.shape).copy_(data)
