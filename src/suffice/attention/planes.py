"""Rows of keys and values in two planes of 4 bits: `kmeans4`, and what it leaves of a row.

    y = H x                       a Hadamard matrix, or several, as large as the size allows
    y is s L[b] by the base       16 levels L, the best of a few scales s, for keys in bfloat16
    y is s (L[b] + r) by both     -8 <= r < 8; |L[b] + r| < 128: a row of int8

The base plane has the codes b and the scale, and is the row as `kmeans4` has it; the second plane
has r. A base may also be a copy of a row of another type: r is then any number, not stored. This
is the reference of csrc/kernels/kv_planes.inl, without the fitted scales of channels, the mean key
and errors that are passed on, for which see `suffice.decoder.key_rounding`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from suffice.quant import hadamard

UPPER = (3, 9, 15, 21, 27, 35, 45, 59)
LEVELS = np.array([*(-level for level in reversed(UPPER)), *UPPER], np.int8)
GREATEST = UPPER[-1]
LEVEL_UNIT = 21.73  # of a normal variable's deviation
TRIED = (0.80, 0.87, 0.94, 1.01, 1.08, 1.15, 1.22, 1.30)  # scales, times that of a normal row
LEAST, MOST = -8, 7  # of r
LEAST_LENGTH = np.float32(0.125)  # of r's that is stored, and how far its byte is shifted
LENGTH_SHIFT = 19
ERROR_UNIT = np.float32(64)  # steps of such a byte, of a value's relative error


@dataclass(frozen=True)
class Planes:
    """Rotated rows [..., D]: levels and r, and a scale for each row, float32 [..., 1].

    Levels are int8, and so is r, but of rows of other types with a base.
    """

    levels: np.ndarray
    rest: np.ndarray
    scale: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """The rotated rows by both planes, float64 [..., D]."""
        rows: np.ndarray = self.base + self.scale.astype(np.float64) * self.rest
        return rows

    @property
    def base(self) -> np.ndarray:
        """The rotated rows by the base plane alone, float64 [..., D]."""
        rows: np.ndarray = self.scale.astype(np.float64) * self.levels
        return rows

    @property
    def lengths(self) -> np.ndarray:
        """The lengths of r as they are stored, float32 [..., 1]: a byte, rounded up."""
        return _stored(np.sqrt(np.square(self.rest.astype(np.float64)).sum(-1, keepdims=True)))

    @property
    def errors(self) -> np.ndarray:
        """How far bases are from rows, over the length of these, as stored: float32 [..., 1]."""
        lost = np.square(self.rest.astype(np.float64)).sum(-1, keepdims=True)
        whole = np.square(self.rest + self.levels.astype(np.float64)).sum(-1, keepdims=True)
        share = np.sqrt(np.divide(lost, whole, out=np.zeros_like(whole), where=whole > 0))
        errors: np.ndarray = _stored(ERROR_UNIT * share) / ERROR_UNIT
        return errors


def _stored(lengths: np.ndarray) -> np.ndarray:
    """Return lengths as bytes have them, which are rounded up, float32."""
    most = np.maximum(lengths.astype(np.float32) * np.float32(1.0001), LEAST_LENGTH)
    above = most.view(np.int32) - LEAST_LENGTH.view(np.int32)
    code = np.minimum((above + (1 << LENGTH_SHIFT) - 1) >> LENGTH_SHIFT, 255)
    bits = (code << LENGTH_SHIFT) + LEAST_LENGTH.view(np.int32)
    stored: np.ndarray = bits.view(np.float32)
    return stored


def rotated(rows: np.ndarray) -> np.ndarray:
    """Return rows [..., D] multiplied by H; twice gives the rows again."""
    return hadamard.rotate(rows, rows.shape[-1] & -rows.shape[-1])


def split(rows: np.ndarray, *, keys: bool) -> Planes:
    """Return the planes of rows [..., D], of keys or else of values."""
    whole = with_base(rows, keys=keys)
    rest = np.rint(whole.rest).clip(LEAST, MOST).astype(np.int8)
    return Planes(whole.levels, rest, whole.scale)


def with_base(rows: np.ndarray, *, keys: bool) -> Planes:
    """Return rows [..., D], of keys or else of values, with the base that is a copy."""
    turned = rotated(rows.astype(np.float64))
    levels, scale = _coded(turned)
    if keys:
        from ml_dtypes import bfloat16  # here alone: kernels for GPUs need none of it

        scale = scale.astype(bfloat16).astype(np.float32)
    exact = np.divide(turned, scale, out=np.zeros_like(turned), where=scale > 0)
    return Planes(levels, exact - levels, scale)


def _coded(turned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels of rotated rows [..., D], and the scales that leave least of them."""
    usual = np.sqrt(np.square(turned).mean(-1, keepdims=True)) / LEVEL_UNIT
    borders = (LEVELS[1:].astype(np.float64) + LEVELS[:-1]) / 2
    levels, scale = np.zeros(turned.shape, np.int8), np.zeros_like(usual)
    most = np.zeros_like(usual)
    for factor in TRIED:
        exact = np.divide(turned, factor * usual, out=np.zeros_like(turned), where=usual > 0)
        found = LEVELS[np.searchsorted(borders, exact)]
        product = (turned * found).sum(-1, keepdims=True)
        square = np.square(found.astype(np.float64)).sum(-1, keepdims=True)
        better = product**2 / square > most
        most = np.where(better, product**2 / square, most)
        scale = np.where(better, product / square, scale)
        levels = np.where(better, found, levels)
    return levels, scale.astype(np.float32)
