"""Request patterns for simulating a memory: streams, and random chunks at a load."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from suffice_hw.dram.part import Part

Requests = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]


def stream(part: Part, bursts: int, start: int = 0) -> Requests:
    """Return sequential reads that all arrive at time 0: arrivals [n], addresses [n]."""
    addresses = start + np.arange(bursts, dtype=np.int64) * part.burst_bytes
    return np.zeros(bursts), addresses


def chunks(
    part: Part, count: int, chunk_bytes: int, load: float | None = None, seed: int = 0
) -> Requests:
    """Return reads of random chunks, aligned to their size: arrivals [n], addresses [n].

    `load` is a share of the buses' peak; chunks arrive at this rate as a Poisson process. Without a
    load, all chunks arrive at time 0.
    """
    random: Any = np.random.default_rng(seed)
    bursts = chunk_bytes // part.burst_bytes
    starts = random.integers(0, part.size_bytes // chunk_bytes, count) * chunk_bytes
    offsets = np.arange(bursts, dtype=np.int64) * part.burst_bytes
    addresses = (starts[:, None] + offsets).ravel()
    times = np.zeros(count)
    if load is not None:
        times = random.exponential(chunk_bytes / (load * part.peak_bytes_per_ns), count).cumsum()
    return np.repeat(times, bursts), addresses
