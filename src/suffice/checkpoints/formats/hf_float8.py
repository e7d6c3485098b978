"""Weights in 8-bit floats (e4m3), as FP8 checkpoints store them.

    weight [N, K]    e4m3: a sign, 4 bits of exponent, 3 of mantissa; no infinities

and scales. One belongs to a whole tensor, a row, or a block of rows and columns:

    w[n, k] = e4m3[n, k] scale[n // block rows, k // block columns]

`weight_scale_inv` (DeepSeek, Qwen) and `weight_scale` (compressed-tensors, AutoFP8) both hold
factors.

Source   finegrained_fp8 of transformers, float-quantized of compressed-tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from suffice.checkpoints.formats.hf_parts import FLOAT_TYPES, Parts
from suffice.quant.packed_float8 import SPAN, StoredFloat8

FLOAT8 = "F8_E4M3"
_NAN = 0x7F  # with either sign
_GREATEST = np.float32(448)


@dataclass(frozen=True)
class Float8:
    """A scale for a `block` of rows and columns; None: for a row or the whole tensor."""

    parts: ClassVar[tuple[str, ...]] = ("weight", "weight_scale_inv", "weight_scale")

    block: tuple[int, int] | None

    def is_coded(self, parts: Parts) -> bool:
        """Whether the layer has 8-bit floats."""
        return parts.type("weight") == FLOAT8

    def shape(self, parts: Parts) -> tuple[int, int]:
        """Return the weight's shape.

        Raises:
            InputError: The tensors do not fit each other.
        """
        rows, columns = parts.shape("weight")
        whole: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1), (rows,), (rows, 1))
        if self.block is not None:
            height, width = self.block
            if width % SPAN and width < columns:
                raise parts.error(f"scales for {width} columns; a multiple of {SPAN} is supported")
            whole = ((-(-rows // height), -(-columns // width)),)
        parts.expect(_scale(parts), FLOAT_TYPES, *whole)
        return rows, columns

    def read(self, parts: Parts) -> StoredFloat8:
        """Read a weight.

        Raises:
            InputError: A value is not finite.
        """
        rows, columns = self.shape(parts)
        scale = parts.scales(_scale(parts)).astype(np.float32)
        with np.errstate(over="ignore"):
            fits = np.isfinite(scale * _GREATEST).all()
        if not fits:
            raise parts.error(f"'{_scale(parts)}' makes weights infinite; all must be finite")
        data = parts.load("weight").view(np.uint8)
        if (data & _NAN == _NAN).any():
            raise parts.error("'weight' has NaN entries; all must be finite")
        spans = -(-columns // SPAN)
        if self.block is None:
            scales = np.broadcast_to(scale.reshape(-1, 1), (rows, spans))
        else:
            height, width = self.block
            wide = np.repeat(scale, -(-width // SPAN), 1)[:, :spans]
            scales = np.repeat(wide, height, 0)[:rows]
        return StoredFloat8(data, np.ascontiguousarray(scales))

    def type(self, parts: Parts) -> str:
        """Return the name of the format."""
        return "FP8"


def _scale(parts: Parts) -> str:
    return "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
