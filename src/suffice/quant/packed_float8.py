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

SPAN = 128  # columns with one scale
_FOUR = 4  # columns of a line
_LINE_BYTES = 64
_SPAN_BYTES = _LINE_BYTES + SPAN * ROWS
_PANELS = 16  # laid out at a time, so that their parts stay in the cache
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
        spans = -(-self.columns // SPAN)
        whole = np.zeros((len(self.data), spans * _SPAN_BYTES), np.uint8)
        whole[:, : self.data.shape[1]] = self.data
        parts = whole.reshape(len(whole), spans, _SPAN_BYTES)
        scales = parts[:, :, :_LINE_BYTES].copy().view(np.float32) / _FACTOR
        pairs = parts[:, :, _LINE_BYTES:].copy().view(np.uint16)
        rows = pairs.reshape(len(whole), spans, -1, ROWS).transpose(0, 3, 1, 2)
        values = np.ascontiguousarray(rows).view(_DTYPE).astype(np.float32)
        weight = values * scales.transpose(0, 2, 1)[..., None]
        dense = weight.reshape(len(whole) * ROWS, -1)
        return np.ascontiguousarray(dense[: self.rows, : self.columns])


def pack_float8(
    stored: StoredFloat8, bias: np.ndarray | None = None, allocate: Allocate = np.empty
) -> PackedFloat8:
    """Pack a stored weight [N, K] and an optional bias [N]; no value changes."""
    rows, columns = stored.data.shape
    panels, spans = -(-rows // ROWS), -(-columns // SPAN)
    lines = -(-columns // _FOUR)
    packed = allocate((panels, (spans + lines) * _LINE_BYTES), np.dtype(np.uint8))
    for first in range(0, panels, _PANELS):
        own = slice(first * ROWS, (first + _PANELS) * ROWS)
        count = min(_PANELS, panels - first)
        bytes_ = np.zeros((count * ROWS, spans * SPAN), np.uint8)
        scales = np.zeros((count * ROWS, spans), np.float32)
        bytes_[: len(stored.data[own]), :columns] = stored.data[own]
        scales[: len(stored.scales[own])] = stored.scales[own] * _FACTOR
        pairs = bytes_.view(np.uint16).reshape(count, ROWS, spans, -1).transpose(0, 2, 3, 1)
        parts = np.empty((count, spans, _SPAN_BYTES), np.uint8)
        by_span = np.ascontiguousarray(scales.reshape(count, ROWS, spans).swapaxes(1, 2))
        parts[:, :, :_LINE_BYTES] = by_span.view(np.uint8)
        all_lines = np.ascontiguousarray(pairs).view(np.uint8)
        parts[:, :, _LINE_BYTES:] = all_lines.reshape(count, spans, -1)
        packed[first : first + count] = parts.reshape(count, -1)[:, : packed.shape[1]]
    return PackedFloat8(packed, rows, columns, bias=float32(bias))
