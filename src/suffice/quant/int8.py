"""Int8 weights with a scale for every 32 of a row, and inputs of 16 or 8 bits.

    w ~ scale[n, g] q[n, k],    g = k // 32,    -127 <= q <= 127
    y[n] = sum_g scale[n, g] scale_x[g] sum_k q[n, k] q_x[k]    (the inner sum is exact, in int32)

The scale is a float16, the best of many trials from max |w| / 127.5 on: see `quant.nested`. Weights
that lie on a coarse grid, such as those of a file of 4 bits, then lose far less than by max / 127.

Bound    the squared error of a group is at most that of the scale max |w| / 127.5, which is at most
         (max |w| / 255)^2 for each weight, up to the rounding of scales to float16.
Cost     8.5 bits per weight and step.
Native   csrc/kernels/linear_codes.inl, csrc/kernels/round_int8.inl
Options
    act_bits  bits of inputs: 16, whose rounding cannot be measured, or 8
    sites     matrices whose inputs have 8 bits; the others have 16. The default leaves out `down`
              (its inputs cost most of what 8 bits cost), and linear is all of a layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from suffice.errors import InputError
from suffice.quant.code_layout import CodeLayout
from suffice.quant.code_panels import LEVEL_OFFSET, Numbers, pack_panels
from suffice.quant.coded import grouped, halves, inverse_of, row_blocks
from suffice.quant.nested import Rounding, signed_scale
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes
from suffice.quant.panels import Allocate, float32
from suffice.quant.sites import STEADY, input_bits

INT8_LAYOUT = CodeLayout(8, 32)
_GREATEST = 127
# Down to 96 levels of a sign. Float weights gain little below 115, those on a grid of 4 bits much.
ROUNDING = Rounding(
    INT8_LAYOUT,
    np.arange(-_GREATEST, _GREATEST + 1, dtype=np.float32),
    (0.994 ** -np.arange(48) / 127.5).astype(np.float32),
)


@dataclass(frozen=True)
class Int8:
    """Int8 weights, and inputs of `act_bits` bits, 16 or 8, at `sites`, such as `qkv+down`, and of
    16 elsewhere; in groups of 32."""

    dtype: ClassVar[None] = None
    calibrates: ClassVar[bool] = False
    needs_text: ClassVar[bool] = False
    hadamard: ClassVar[bool] = False

    act_bits: int = 16
    sites: str = STEADY

    def __post_init__(self) -> None:
        if self.act_bits not in INPUT_LEVELS:
            raise InputError(f"int8: act_bits={self.act_bits}; allowed: 8, 16")
        input_bits("int8", self.act_bits, self.sites, "")  # refuses unknown sites

    @property
    def coded_bits(self) -> None:
        """Bits of codes that `pack` chooses: it chooses none."""

    def for_matrix(self, matrix: str) -> Int8:
        """Return the method for a matrix, by its name: `act_bits` are the bits of its inputs.

        The head's have 16: a step computes few of its rows, and rounding would show in every logit.
        """
        bits = input_bits("int8", self.act_bits, self.sites, matrix)
        return self if bits == self.act_bits else Int8(bits)

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = np.empty
    ) -> PackedCodes:
        """Quantize and pack a dense weight [N, K].

        Raises:
            InputError: A weight so large that float16 cannot hold its scale.
        """
        rows, columns = weight.shape
        codes, scale = quantize_groups(weight.astype(np.float32, copy=False))
        stored = (codes + np.int16(LEVEL_OFFSET)).astype(np.uint8)
        data = pack_panels(INT8_LAYOUT, stored, Numbers(scale), allocate)
        return self.packed(data, rows, columns, bias)

    def packed(
        self, data: np.ndarray, rows: int, columns: int, bias: np.ndarray | None
    ) -> PackedCodes:
        """Return the weight [N, K] of some panels."""
        return PackedCodes(
            data,
            rows,
            columns,
            bias=float32(bias),
            layout=INT8_LAYOUT,
            levels=np.arange(256, dtype=np.uint8),
            most=INPUT_LEVELS[self.act_bits],
        )


def quantize_groups(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize float32 [N, K] to int8: codes [N, K], and float16 scales of 32 columns [N, G].

    Halves round to even; a group whose scale rounds to 0 has codes 0.

    Raises:
        InputError: A scale is too large for float16.
    """
    parts = grouped(values, INT8_LAYOUT.group)
    halves(np.abs(parts).max(-1) / np.float32(_GREATEST))  # refuses what trials cannot compare
    found = np.empty(parts.shape[:2], np.float32)
    cost = np.ones(INT8_LAYOUT.group, np.float32)
    for own in row_blocks(values):
        found[own] = signed_scale(parts[own], cost, ROUNDING)
    scale = halves(found)
    steps = np.rint(parts * inverse_of(scale.astype(np.float32))[..., None])
    codes = steps.clip(-_GREATEST, _GREATEST).astype(np.int8)
    return codes.reshape(len(values), -1)[:, : values.shape[1]], scale + np.float16(0)  # no -0
