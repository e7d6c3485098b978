"""Weights as in the checkpoint, in float32 or bfloat16.

Exact    always: stored values are multiplied as they are and accumulated in float32.
Cost     4 or 2 bytes per weight and step.
Native   csrc/kernels/linear.inl
Options
    dtype  type of the stored weights: bfloat16 or float32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from suffice.errors import unknown
from suffice.quant.panels import PackedLinear, pack

_FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class NoQuant:
    """Weights kept in `dtype`; activations in float32."""

    calibrates: ClassVar[bool] = False
    hadamard: ClassVar[bool] = False

    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.dtype not in _FLOATS:
            raise unknown("weight dtype", self.dtype, _FLOATS)

    @classmethod
    def exact_limit(cls) -> NoQuant:
        """Return the setting that keeps every bit of a float32 checkpoint."""
        return cls("float32")

    @property
    def coded_bits(self) -> None:
        """Bits of codes that `pack` chooses: it chooses none."""

    def for_matrix(self, matrix: str) -> NoQuant:
        """Return the method for a matrix: the same for all names."""
        return self

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        """Pack a dense weight [N, K]."""
        rows, columns = weight.shape
        data = pack(weight.to(_FLOATS[self.dtype]))
        return PackedLinear(data, rows, columns, bias=None if bias is None else bias.float())
