"""Sums in float32 whose order is the same on every machine, so that codes are, too.

NumPy leaves the order to the processor. Here the values of a row are cut into vectors of 8, vector
i goes to sum i mod 4, and each of the four sums up 16 of its vectors before it passes them on to
the next level. The four sums are then added, then the lanes.
"""

from __future__ import annotations

import numpy as np

LANES, SUMS, STEPS, LEVELS = 8, 4, 16, 4


def row_sums(values: np.ndarray) -> np.ndarray:
    """Return the sums of float32 values over the last dimension."""
    rows = values.reshape(-1, values.shape[-1])
    vectors = rows.shape[1] // LANES
    found = _in_order(rows[:, vectors * LANES :])
    if vectors:
        cut = rows[:, : vectors * LANES].reshape(len(rows), vectors, LANES)
        steps = vectors // SUMS
        four = _cascade(cut[:, : steps * SUMS].reshape(len(rows), steps, SUMS, LANES))
        for left in range(steps * SUMS, vectors):
            four[:, 0] += cut[:, left]
        for lane in _in_order(four.transpose(0, 2, 1)).T:
            found += lane
    return found.reshape(values.shape[:-1])


def _cascade(values: np.ndarray) -> np.ndarray:
    """Return the sums of values [N, T, 4, 8] over T, 16 at a time on each level but the last."""
    total = np.zeros((len(values), *values.shape[2:]), values.dtype)
    for level in range(LEVELS):
        groups = values.shape[1] // STEPS if level < LEVELS - 1 else 0
        left = np.zeros_like(total)
        for step in range(groups * STEPS, values.shape[1]):
            left += values[:, step]
        total += left
        if not groups:
            break
        next_level = np.zeros((len(values), groups, *values.shape[2:]), values.dtype)
        grouped = values[:, : groups * STEPS].reshape(len(values), groups, STEPS, *values.shape[2:])
        for step in range(STEPS):
            next_level += grouped[:, :, step]
        values = next_level
    return total


def _in_order(values: np.ndarray) -> np.ndarray:
    """Return the sums over the last dimension, from the first value to the last."""
    found = np.zeros(values.shape[:-1], values.dtype)
    for at in range(values.shape[-1]):
        found += values[..., at]
    return found
