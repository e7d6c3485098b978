"""Limits PyTorch's threads while the native core uses the cores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep PyTorch from waking its other threads.

    After a parallel operation they spin for a while, on cores that the next decode step needs. The
    work between two steps is too small to gain from them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
