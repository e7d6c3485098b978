"""Int8 weights with a scale per output channel, int8 activations with a scale per token.

    w ~ scale[n] * q[n, k],  q = round(w / scale),  scale[n] = max_k |w[n, k]| / 127
    y[n] = scale[n] * scale_x * sum_k q[n, k] * q_x[k]         (the sum is exact, in int32)

Bound    |w - scale q| <= scale / 2 for every weight, and the same for every activation.
Cost     1 byte per weight and step.
Native   csrc/kernels/linear.inl (VNNI, maddubs or plain products), csrc/kernels/pack.inl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from suffice.quant.panels import Allocate, PackedLinear, float32, pack

LEVELS = 127


@dataclass(frozen=True)
class Int8:
    """Symmetric int8 weights per output channel and int8 activations per token."""

    dtype: ClassVar[None] = None
    calibrates: ClassVar[bool] = False
    hadamard: ClassVar[bool] = False

    @property
    def coded_bits(self) -> None:
        """Bits of codes that `pack` chooses: it chooses none."""

    def for_matrix(self, matrix: str) -> Int8:
        """Return the method for a matrix: the same for all names."""
        return self

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = np.empty
    ) -> PackedLinear:
        """Quantize and pack a dense weight [N, K]."""
        rows, columns = weight.shape
        codes, scale = quantize_rows(weight.astype(np.float32, copy=False))
        return PackedLinear(pack(codes, allocate), rows, columns, scale, float32(bias))


def quantize_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize each row of float32 [..., K] to int8: codes [..., K] and scales [...].

    Halves round to even; a row of zeros has scale 0.
    """
    scale = np.abs(values).max(axis=-1) / np.float32(LEVELS)
    codes = np.rint(values * inverse_of(scale)[..., None]).astype(np.int8)
    return codes, scale


def inverse_of(scale: np.ndarray) -> np.ndarray:
    """Return 1 / scale, or 0 where a scale is 0 or so small that its inverse may be infinite."""
    normal = scale >= np.finfo(scale.dtype).smallest_normal
    inverse: np.ndarray = np.divide(1, scale, out=np.zeros_like(scale), where=normal)
    return inverse
