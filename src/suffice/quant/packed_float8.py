"""Weights of 8-bit floats (e4m3) in panels of 16 output rows, with a scale for 128 columns.

    w[n, k] = e4m3[n, k] scale[n, k // 128]

    panel   for every 128 columns: float32 256 scale[16], then lines of 4 columns
    line    uint8 [2][16][2]: columns 0 and 1 of each row, then columns 2 and 3

A byte s eeee mmm is, moved into 16 bits as s 0 eeee mmm 0000000, the float16 of 1/256 its value, so
the panel's scales are 256 times as large. That is exact, and so is a product's one rounding: the
weight is the float32 that the file's own formula gives. NaN, the one value that is not finite, does
not occur.

Native   csrc/kernels/linear_f8.inl
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from suffice.quant.panels import ROWS, Allocate, PackedLinear, float32

__all__ = ["SPAN", "PackedFloat8", "StoredFloat8", "pack_float8"]

SPAN = 128  # columns with one scale
_FOUR = 4  # columns of a line
_LINE_BYTES = 64
_FACTOR = np.float32(256)
_DTYPE = np.dtype(ml_dtypes.float8_e4m3fn)


@dataclass(frozen=True)
class StoredFloat8:
    """A weight [N, K] as a file stores it: `data` uint8 [N, K], e4m3; `scales` float32 [N, G].

    G is the number of spans of 128 columns.
    """

    data: np.ndarray
    scales: np.ndarray

    def rows(self, first: int, out: np.ndarray) -> None:
        """Write the values of rows `first`, ... into `out` float32 [rows, K]."""
        own = slice(first, first + len(out))
        out[:] = self.data[own].view(_DTYPE)
        for g, begin in enumerate(range(0, out.shape[1], SPAN)):
            out[:, begin : begin + SPAN] *= self.scales[own, g, None]


@dataclass(frozen=True, eq=False)
class PackedFloat8(PackedLinear):
    """A linear layer's weight in 8-bit floats; `data` is uint8 [N/16, bytes]."""

    @property
    def dtype(self) -> str:
        """Name of the storage type."""
        return "float8"

    def unpack(self) -> np.ndarray:
        """Return the dense weight [N, K] in float32, scales applied."""
        panels, spans = len(self.data), -(-self.columns // SPAN)
        scales = np.empty((panels, ROWS, spans), np.float32)
        weight = np.empty((panels, ROWS, _whole(self.columns)), np.float32)
        at = 0
        for g, begin in enumerate(range(0, self.columns, SPAN)):
            columns = min(SPAN, weight.shape[2] - begin)
            end = at + _LINE_BYTES + columns * ROWS
            scales[:, :, g] = self.data[:, at : at + _LINE_BYTES].copy().view(np.float32)
            lines = self.data[:, at + _LINE_BYTES : end].reshape(panels, -1, 2, ROWS, 2)
            rows = np.ascontiguousarray(lines.transpose(0, 3, 1, 2, 4))
            weight[:, :, begin : begin + columns] = rows.reshape(panels, ROWS, columns).view(_DTYPE)
            at = end
        wide = np.repeat(scales / _FACTOR, SPAN, 2)[:, :, : weight.shape[2]]
        whole = (weight * wide).reshape(panels * ROWS, -1)
        return np.ascontiguousarray(whole[: self.rows, : self.columns])


def pack_float8(
    stored: StoredFloat8, bias: np.ndarray | None = None, allocate: Allocate = np.empty
) -> PackedFloat8:
    """Pack a stored weight [N, K] and an optional bias [N]; no value changes."""
    rows, columns = stored.data.shape
    panels, whole = -(-rows // ROWS), _whole(columns)
    spans = -(-columns // SPAN)
    packed = allocate((panels, spans * _LINE_BYTES + whole * ROWS), np.dtype(np.uint8))
    for panel in range(panels):
        own = slice(panel * ROWS, (panel + 1) * ROWS)
        bytes_ = np.zeros((ROWS, whole), np.uint8)
        scales = np.zeros((ROWS, spans), np.float32)
        part = stored.data[own]
        bytes_[: len(part), :columns] = part
        scales[: len(part)] = stored.scales[own] * _FACTOR
        at = 0
        for g, begin in enumerate(range(0, columns, SPAN)):
            fours = bytes_[:, begin : begin + SPAN].reshape(ROWS, -1, 2, 2)
            lines = fours.transpose(1, 2, 0, 3).reshape(-1)
            packed[panel, at : at + _LINE_BYTES] = scales[:, g].copy().view(np.uint8)
            at += _LINE_BYTES
            packed[panel, at : at + len(lines)] = lines
            at += len(lines)
    return PackedFloat8(packed, rows, columns, bias=float32(bias))


def _whole(columns: int) -> int:
    """Return the columns of whole lines."""
    return -(-columns // _FOUR) * _FOUR
