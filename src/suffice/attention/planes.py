"""Rows of keys and values in two planes of 4 bits, the first readable alone; both make int8.

    y = H x                     a Hadamard matrix, or several, as large as the size allows
    c = round(y / s)            s = max |y| / 127, for keys the nearest bfloat16
    c = 16 b + r                0 <= r < 16; b in the base plane, r in the second
    y is s c by both planes     and 8 s (2 b + 1) by the base plane alone

The row that s and c stand for is split into these s and c again, so rows that were read from a
cache can be split. This is the reference of csrc/kernels/kv_planes.inl, without the fitted
scales of channels and the mean key, for which see `suffice.models.key_rounding`.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from suffice.quant import hadamard

__all__ = ["BASE_UNIT", "MOST", "Planes", "rotated", "split"]

MOST = 127  # the largest code
BASE_UNIT = 8  # the scale of 2 b + 1, in units of s


@dataclass(frozen=True)
class Planes:
    """Rotated rows [..., D]: codes, int8, and a scale for each row, float32 [..., 1]."""

    codes: np.ndarray
    scale: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """The rotated rows by both planes, float64 [..., D]."""
        rows: np.ndarray = self.scale.astype(np.float64) * self.codes
        return rows

    @property
    def base(self) -> np.ndarray:
        """The rotated rows by the base plane alone, float64 [..., D]."""
        rows: np.ndarray = BASE_UNIT * self.scale.astype(np.float64) * self.levels
        return rows

    @property
    def levels(self) -> np.ndarray:
        """What the base plane has in units of 8 s: 2 b + 1, odd, from -15 to 15."""
        levels: np.ndarray = 2 * (self.codes >> 4) + 1
        return levels


def rotated(rows: np.ndarray) -> np.ndarray:
    """Return rows [..., D] multiplied by H; twice gives the rows again."""
    return hadamard.rotate(rows, rows.shape[-1] & -rows.shape[-1])


def split(rows: np.ndarray, *, keys: bool) -> Planes:
    """Return the planes of rows [..., D], of keys or else of values."""
    turned = rotated(rows.astype(np.float64))
    scale = (np.abs(turned).max(-1, keepdims=True) / MOST).astype(np.float32)
    if keys:
        scale = scale.astype(ml_dtypes.bfloat16).astype(np.float32)
    exact = np.divide(turned, scale, out=np.zeros_like(turned), where=scale > 0)
    return Planes(np.rint(exact).astype(np.int8), scale)
