"""The packed layout of weights: panels of 16 output rows, read as one sequential stream.

A panel holds 16 output rows. Each of its 64-byte lines holds, for these 16 rows, the next 4 bytes
of K: one float32, two bfloat16 or four int8 values per row. A thread that owns some panels reads
one sequential stream, and results land in vector lanes without a horizontal sum. A pair of bfloat16
or a quad of int8 values is one operand of the dot-product instructions.

    packed [N/16, K/p, 16, p]    p = 4 bytes / size of an element; N and K padded with zeros
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

ROWS = 16
_LINE_BYTES = 4
DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
}


class Allocate(Protocol):
    """Makes arrays for packed weights: `np.empty`, or pieces of huge pages."""

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an array whose content is arbitrary."""
        ...


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A linear layer's weight as a backend reads it; equal only to itself.

    `data` is [N/16, K/p, 16, p]; `scale` float32 [N] multiplies each output row (int8 only);
    `bias` float32 [N].
    """

    data: np.ndarray
    rows: int
    columns: int
    scale: np.ndarray | None = None
    bias: np.ndarray | None = None

    @property
    def dtype(self) -> str:
        """Name of the storage type: float32, bfloat16 or int8."""
        return str(self.data.dtype.name)

    @property
    def bytes(self) -> int:
        """Bytes that one pass over the layer reads."""
        parts = (self.data, self.scale, self.bias)
        return sum(part.nbytes for part in parts if part is not None)

    def quantize_inputs(self, x: np.ndarray) -> np.ndarray:
        """Return inputs [T, K] as the layer uses them, before they are rounded to codes."""
        return x

    def unpack(self) -> np.ndarray:
        """Return the dense weight [N, K] in float32, scales applied."""
        weight = unpack(self.data, self.rows, self.columns).astype(np.float32)
        return weight if self.scale is None else weight * self.scale[:, None]


def float32(values: np.ndarray | None) -> np.ndarray | None:
    """Return a float32 copy of values, which shares no memory with them; None of None."""
    return None if values is None else np.array(values, np.float32)


def packed_shape(rows: int, columns: int, dtype: np.dtype[Any]) -> tuple[int, int, int, int]:
    """Return the shape of a packed weight [N, K] of a type."""
    pair = _LINE_BYTES // dtype.itemsize
    return -(-rows // ROWS), -(-columns // 4) * 4 // pair, ROWS, pair


def pack(weight: np.ndarray, allocate: Allocate = np.empty) -> np.ndarray:
    """Pack [N, K] of float32, bfloat16 or int8 into panels [N/16, K/p, 16, p]."""
    rows, columns = weight.shape
    packed = allocate(packed_shape(rows, columns, weight.dtype), weight.dtype)
    panels, steps, _, pair = packed.shape
    dense = weight
    if (rows, columns) != (panels * ROWS, steps * pair):
        dense = np.zeros((panels * ROWS, steps * pair), weight.dtype)
        dense[:rows, :columns] = weight
    packed[...] = dense.reshape(panels, ROWS, steps, pair).transpose(0, 2, 1, 3)
    return packed


def unpack(packed: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the dense [N, K] that was packed, in the same type."""
    panels, steps, lanes, pair = packed.shape
    dense = packed.transpose(0, 2, 1, 3).reshape(panels * lanes, steps * pair)
    return np.ascontiguousarray(dense[:rows, :columns])
