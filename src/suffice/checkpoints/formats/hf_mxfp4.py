"""Experts in MXFP4, as gpt-oss stores them: 4-bit floats, and a power of two for 32 columns.

    blocks [E, N, K/32, 16]   bytes of two codes, the first column in the low half
    scales [E, N, K/32]       bytes s
    w[e, n, k] = level[code] 2^(s - 128)

Levels are twice the values of e2m1, so that they are whole numbers.

Source   OCP Microscaling Formats (MX) 1.0; mxfp4 of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from suffice.checkpoints.formats.gguf_types import CODES
from suffice.checkpoints.formats.hf_parts import Parts
from suffice.quant.stored_codes import StoredCodes

_GROUP, _BYTES = 32, 16  # columns, and the bytes of their codes
_NAN = 255  # among scales


@dataclass(frozen=True)
class MXFP4:
    """Stacks of matrices, one for each expert."""

    parts: ClassVar[tuple[str, ...]] = ("blocks", "scales")

    def is_coded(self, parts: Parts) -> bool:
        """Whether the layer has codes."""
        return "blocks" in parts

    def shape(self, parts: Parts) -> tuple[int, ...]:
        """Return the shape [E, N, K] of all experts' matrices.

        Raises:
            InputError: The tensors do not fit each other.
        """
        experts, rows, groups, _ = parts.shape("blocks", 4)
        parts.expect("blocks", ("U8",), (experts, rows, groups, _BYTES))
        parts.expect("scales", ("U8",), (experts, rows, groups))
        return experts, rows, groups * _GROUP

    def read(self, parts: Parts) -> StoredCodes:
        """Read all experts' matrices as one [E N, K].

        Raises:
            InputError: A scale is no number.
        """
        experts, rows, columns = self.shape(parts)
        blocks, scales = (
            parts.load(part).view(np.uint8).reshape(experts * rows, -1) for part in self.parts
        )
        if (scales == _NAN).any():
            raise parts.error("'scales' has NaN entries; all must be finite")
        codes = np.empty((experts * rows, columns), np.uint8)
        codes[:, 0::2], codes[:, 1::2] = blocks & 15, blocks >> 4
        layout, levels = CODES["MXFP4"]
        return StoredCodes(layout, levels, codes, scales)

    def type(self, parts: Parts) -> str:
        """Return the name of the format."""
        return "MXFP4"
