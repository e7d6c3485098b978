"""Weights as in the checkpoint, in float32 or bfloat16.

Exact    always: stored values are multiplied as they are and accumulated in float32.
Cost     4 or 2 bytes per weight and step.
Native   csrc/kernels/linear.inl, csrc/kernels/pack.inl
Options
    dtype  type of the stored weights: bfloat16 or float32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from suffice.errors import unknown
from suffice.quant.panels import DTYPES, Allocate, PackedLinear, float32, pack

_FLOATS = ("float32", "bfloat16")


@dataclass(frozen=True)
class NoQuant:
    """Weights kept in `dtype`; activations in float32."""

    calibrates: ClassVar[bool] = False
    needs_text: ClassVar[bool] = False
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

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = np.empty
    ) -> PackedLinear:
        """Pack a dense weight [N, K]."""
        rows, columns = weight.shape
        data = pack(weight.astype(DTYPES[self.dtype], copy=False), allocate)
        return PackedLinear(data, rows, columns, bias=float32(bias))
