"""The packed layout of weights: panels of 16 output rows, read as one sequential stream.

A panel holds 16 output rows. Each of its 64-byte lines holds, for these 16 rows, the next 4 bytes
of K: one float32, two bfloat16 or four int8 values per row. A thread that owns some panels reads
one sequential stream, and results land in vector lanes without a horizontal sum. A pair of bfloat16
or a quad of int8 values is one operand of the dot-product instructions.

    packed [N/16, K/p, 16, p]    p = 4 bytes / size of an element; N and K padded with zeros
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ROWS = 16
_LINE_BYTES = 4
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A linear layer's weight as a backend reads it; equal only to itself.

    `data` is [N/16, K/p, 16, p]; `scale` float32 [N] multiplies each output row (int8 only);
    `bias` float32 [N].
    """

    data: torch.Tensor
    rows: int
    columns: int
    scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def dtype(self) -> str:
        """Name of the storage type: float32, bfloat16 or int8."""
        return str(self.data.dtype).removeprefix("torch.")

    @property
    def bytes(self) -> int:
        """Bytes that one pass over the layer reads."""
        parts = (self.data, self.scale, self.bias)
        return sum(part.nbytes for part in parts if part is not None)

    def quantize_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs [T, K] as the layer uses them, before they are rounded to codes."""
        return x

    def unpack(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the dense weight [N, K] in `dtype`, scales applied."""
        weight = unpack(self.data, self.rows, self.columns).float()
        return (weight if self.scale is None else weight * self.scale[:, None]).to(dtype)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Pack [N, K] of float32, bfloat16 or int8 into panels [N/16, K/p, 16, p]."""
    pair = _LINE_BYTES // weight.element_size()
    rows, columns = (-(-size // to) * to for size, to in zip(weight.shape, (ROWS, 4), strict=True))
    padded = weight.contiguous()
    if weight.shape != (rows, columns):
        padded = weight.new_zeros(rows, columns)
        padded[: weight.shape[0], : weight.shape[1]] = weight
    return padded.view(rows // ROWS, ROWS, columns // pair, pair).transpose(1, 2).contiguous()


def unpack(packed: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the dense [N, K] that was packed, in the same type."""
    panels, steps, lanes, pair = packed.shape
    dense = packed.transpose(1, 2).reshape(panels * lanes, steps * pair)
    return dense[:rows, :columns].contiguous()
