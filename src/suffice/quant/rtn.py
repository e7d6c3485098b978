"""Rounding to an even grid, the baseline of K-means; with `compensate`, GPTQ.

Symmetric: 2^b levels from -2^(b-1) to 2^(b-1) - 1, scale = max |w| / (2^(b-1) - 1/2), so both ends
are cut by at most half a step. Asymmetric: levels from 0 to 2^b - 1 span the smallest to the
largest weight, and the zero point is a whole number.

Source   the baseline of quantization papers, among them KLLM's Table II; GPTQ (2210.17323).
Bound    |w - q| <= scale / 2 (asymmetric: scale, because the zero point is rounded).
Cost     `bits` per weight and 16 / group for scales.
Native   csrc/kernels/linear_codes.inl
Options
    bits        bits of a weight's code, 2 to 8
    act_bits    bits of activations: 16 or 8
    group       input channels that share a scale; none: one scale for an output channel
    symmetric   levels lie evenly around zero; false: from smallest to largest, with a zero point
    compensate  GPTQ's error compensation; needs the text of `suffice quantize`
    fisher      weigh the text's tokens by their Fisher information; needs `suffice quantize`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from suffice.errors import InputError
from suffice.quant import gptq
from suffice.quant.activations import Site
from suffice.quant.coded import (
    Coded,
    Grid,
    check_group,
    check_weight,
    group_of,
    grouped,
    stored,
)
from suffice.quant.int8 import Int8
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes, pack_codes
from suffice.quant.panels import Allocate
from suffice.quant.sites import VOCABULARY

BITS = (2, 8)


@dataclass(frozen=True)
class RTN:
    """Even levels of `bits` bits; a scale for each `group` of a row, or with none for the row.

    Inputs have `act_bits` bits, 16 or 8, and a scale for every 32 of a token.

    With `compensate` it is GPTQ; `fisher` then weighs the tokens of the text.
    """

    dtype: ClassVar[None] = None
    calibrates: ClassVar[bool] = True
    hadamard: ClassVar[bool] = False
    weighs_inputs: ClassVar[bool] = False

    bits: int = 4
    act_bits: int = 16
    group: int | None = None
    symmetric: bool = True
    compensate: bool = False
    fisher: bool = False

    def __post_init__(self) -> None:
        if not BITS[0] <= self.bits <= BITS[1]:
            raise InputError(f"rtn: bits={self.bits}; allowed: {BITS[0]}..{BITS[1]}")
        if self.act_bits not in INPUT_LEVELS:
            raise InputError(f"rtn: act_bits={self.act_bits}; allowed: 8, 16")
        check_group("rtn", self.group)
        if self.fisher and not self.compensate:
            raise InputError("rtn: fisher=true goes with compensate=true")

    def grid(self, weight: np.ndarray) -> Grid:
        """Return the even grid of a weight [N, K]."""
        group = group_of(self.group, weight)
        parts = grouped(weight, group)
        top = 2 ** (self.bits - 1)
        if self.symmetric:
            levels = np.arange(-top, top, dtype=np.float32)
            return stored(Grid(levels, np.abs(parts).max(-1) / np.float32(top - 0.5), group))
        least, greatest = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        levels = np.arange(2 * top, dtype=np.float32)
        grid = stored(Grid(levels, (greatest - least) / np.float32(2 * top - 1), group))
        # A scale of 0 has no zero point.
        steps = np.divide(-least, grid.scale, out=np.zeros_like(least), where=grid.scale > 0)
        return replace(grid, zero=np.rint(steps))

    @property
    def needs_text(self) -> bool:
        """Whether it cannot store weights without a calibration on a text."""
        return self.compensate

    @property
    def coded_bits(self) -> int:
        """Bits of the codes that `pack` chooses without a calibration."""
        return self.bits

    def for_matrix(self, matrix: str) -> RTN | Int8:
        """Return the method for a matrix, by its name: embedding and head have int8."""
        return Int8() if matrix in VOCABULARY else self

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = np.empty
    ) -> PackedCodes:
        """Round a dense weight [N, K] without a calibration, and pack it.

        Raises:
            InputError: A weight that cannot be rounded, or codes that cannot be packed: those of
                7 bits, with zero points, or in groups that cannot be stored.
        """
        return self.packed(self.quantize(weight), bias, allocate=allocate)

    def packed(
        self,
        coded: Coded,
        bias: np.ndarray | None = None,
        site: Site | None = None,
        allocate: Allocate = np.empty,
    ) -> PackedCodes:
        """Pack what `quantize` and `site` returned.

        Raises:
            InputError: Codes of 7 bits, with zero points, or in groups that cannot be stored.
        """
        return pack_codes(coded, bias, a=self.act_bits, site=site, allocate=allocate)

    def shared_levels(self, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        """Return None: all weights have the same levels."""

    def site(self, inputs: np.ndarray, gradients: np.ndarray | None = None) -> None:
        """Return None, whatever the inputs [T, K]: sites have no codebooks."""

    def quantize(self, weight: np.ndarray, hessian: np.ndarray | None = None) -> Coded:
        """Return a weight [N, K] on its grid; `compensate` needs H = E[x x^T] [K, K] of inputs.

        Raises:
            InputError: A weight that is not finite, or no text to compensate with.
        """
        check_weight(weight)
        weight = weight.astype(np.float32, copy=False)
        grid = self.grid(weight)
        if not self.compensate:
            return grid.nearest(weight)
        if hessian is None:
            raise InputError("rtn: compensate=true needs a calibration")
        return gptq.compensate(weight, hessian, grid)
