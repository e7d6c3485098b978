"""Int8 weights with a scale per output channel, int8 activations with a scale per token.

    w ~ scale[n] * q[n, k],  q = round(w / scale),  scale[n] = max_k |w[n, k]| / 127
    y[n] = scale[n] * scale_x * sum_k q[n, k] * q_x[k]         (the sum is exact, in int32)

Bound    |w - scale q| <= scale / 2 for every weight, and the same for every activation.
Cost     1 byte per weight and step.
Native   csrc/kernels/linear.inl (VNNI, maddubs or plain products)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from suffice.quant.panels import PackedLinear, pack

LEVELS = 127
BLOCK = 4096  # rows in float32 at a time: a vocabulary is large


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

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        """Quantize and pack a dense weight [N, K]."""
        rows, columns = weight.shape
        parts = [quantize_rows(part.float()) for part in torch.split(weight, BLOCK)]
        codes, scale = (torch.cat(each) for each in zip(*parts, strict=True))
        return PackedLinear(
            pack(codes), rows, columns, scale, None if bias is None else bias.float()
        )


def quantize_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize each row of [..., K] to int8: codes [..., K] and scales [...].

    Halves round to even; a row of zeros has scale 0.
    """
    scale = values.abs().amax(dim=-1) / LEVELS
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    codes = torch.round(values * inverse[..., None]).to(torch.int8)
    return codes, scale
