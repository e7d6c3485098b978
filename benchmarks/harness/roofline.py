"""Measures the streaming read with torch, as a check of our own measurement.

Any program's streaming read is a lower bound of the machine's. If torch is faster than our own
measurement, that is too low, and fractions of it are too high; the tables report this.
"""

from __future__ import annotations

import time

MARGIN = 1.05  # torch's rate over ours from which ours counts as too low


def torch_read_bandwidth(size_bytes: int, repeats: int = 5) -> float:
    """Return the highest rate, in bytes per second, of torch's maximum over a buffer."""
    import torch

    numbers = torch.ones(size_bytes // 4, dtype=torch.int32)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        numbers.amax()
        best = min(best, time.perf_counter() - began)
    return size_bytes / best
