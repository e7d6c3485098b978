"""A second opinion on the streaming read, by a library that is not ours.

What any program reads in order is a lower bound of what the machine can: if torch beats our own
measure, that measure is too low and every fraction of it too high, and the tables say so.
"""

from __future__ import annotations

import time

import torch

MARGIN = 1.05  # how much faster torch may be before the measure counts as too low


def torch_read_bandwidth(size_bytes: int, repeats: int = 5) -> float:
    """Return the best bytes per second at which torch finds the greatest number of a buffer."""
    numbers = torch.ones(size_bytes // 4, dtype=torch.int32)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        numbers.amax()
        best = min(best, time.perf_counter() - began)
    return size_bytes / best
