"""Weights packed by the extension where it can, else by the method itself."""

from __future__ import annotations

import numpy as np

from suffice.native import core
from suffice.quant import Quant
from suffice.quant.int8 import Int8
from suffice.quant.none import NoQuant
from suffice.quant.panels import DTYPES, Allocate, PackedLinear, float32, packed_shape

__all__ = ["pack"]


def pack(
    quant: Quant, weight: np.ndarray, bias: np.ndarray | None, allocate: Allocate
) -> PackedLinear:
    """Return what `quant.pack` does for a weight [N, K] of float32, float16 or bfloat16."""
    if not isinstance(quant, Int8 | NoQuant):
        return quant.pack(weight, bias, allocate)
    rows, columns = weight.shape
    dtype = DTYPES[quant.dtype or "int8"]
    data = allocate(packed_shape(rows, columns, dtype), dtype)
    scale = np.empty(rows, np.float32) if isinstance(quant, Int8) else None
    core.pack(
        np.ascontiguousarray(weight).view(np.uint8).reshape(-1),
        weight.dtype.name,
        rows,
        columns,
        data.view(np.uint8).reshape(-1),
        dtype.name,
        scale,
    )
    return PackedLinear(data, rows, columns, scale, float32(bias))
