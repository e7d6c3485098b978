"""Rounding to nearest on an even grid, the baseline of K-means: `rtn` and, compensated, `gptq`.

Symmetric: 2^w levels from -2^(w-1) to 2^(w-1) - 1, scale = max |w| / (2^(w-1) - 1/2), so that both
ends are cut by at most half a step. Asymmetric: levels from 0 to 2^w - 1 span least to greatest,
and the zero point is a whole number.

Source   the baseline of the quantisation papers, KLLM's Table II among them.
Bound    |w - q| <= scale / 2 (asymmetric: scale, for the rounded zero point).
Cost     w bits per weight and 16 / group for scales.
Native   csrc/kernels/linear_codes_layout.inl, csrc/kernels/linear_codes.inl
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

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
from suffice.quant.sites import VOCABULARY

__all__ = ["RTN"]

BITS = (2, 8)


@dataclass(frozen=True)
class RTN:
    """Even levels of `w` bits; a scale for each `group` of a row, or with none for the row.

    Inputs have `a` bits, 16 or 8, and a scale for each token.

    With `compensate` it is GPTQ, and `fisher` weighs the tokens it looks at.
    """

    w: int = 4
    a: int = 16
    group: int | None = None
    symmetric: bool = True
    compensate: bool = False
    fisher: bool = False

    def __post_init__(self) -> None:
        if not BITS[0] <= self.w <= BITS[1]:
            raise InputError(f"rtn: w={self.w} bits; allowed: {BITS[0]}..{BITS[1]}")
        if self.a not in INPUT_LEVELS:
            raise InputError(f"rtn: a={self.a} bits; allowed: 8, 16")
        check_group("rtn", self.w, self.group)
        if self.fisher and not self.compensate:
            raise InputError("rtn: fisher=true goes with compensate=true")

    def grid(self, weight: torch.Tensor) -> Grid:
        """Return the even grid of a weight [N, K]."""
        group = group_of(self.group, weight)
        parts = grouped(weight, group)
        top = 2 ** (self.w - 1)
        if self.symmetric:
            levels = torch.arange(-top, top).float()
            return stored(Grid(levels, parts.abs().amax(-1) / (top - 0.5), group))
        least, greatest = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        grid = stored(
            Grid(torch.arange(2 * top).float(), (greatest - least) / (2 * top - 1), group)
        )
        zero = torch.where(grid.scale > 0, torch.round(-least / grid.scale), 0.0)
        return replace(grid, zero=zero)

    def at(self, matrix: str) -> RTN | Int8:
        """Return how a matrix is stored, by its name: embedding and head in int8."""
        return Int8() if matrix in VOCABULARY else self

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedCodes:
        """Round a dense weight [N, K] without a calibration, and pack it.

        Raises:
            InputError: A weight that cannot be rounded, or codes that cannot be packed: those of
                more than 6 bits, with zero points, or in groups that are not stored.
        """
        return self.packed(self.quantise(weight), bias)

    def packed(
        self, coded: Coded, bias: torch.Tensor | None = None, site: Site | None = None
    ) -> PackedCodes:
        """Pack what `quantise` and `site` returned.

        Raises:
            InputError: Codes of more than 6 bits, with zero points, or in groups that are not
                stored.
        """
        return pack_codes(coded, bias, a=self.a, site=site)

    def site(self, inputs: torch.Tensor) -> None:
        """Return the levels of a site, whatever its inputs [T, K]: there are none."""

    def quantise(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Coded:
        """Return a weight [N, K] on its grid; `compensate` needs H = E[x x^T] [K, K] of its inputs.

        Raises:
            InputError: A weight that is not finite, or nothing to compensate with.
        """
        check_weight(weight)
        weight = weight.float()
        grid = self.grid(weight)
        if not self.compensate:
            return grid.nearest(weight)
        if hessian is None:
            raise InputError("rtn: compensate=true needs a calibration")
        return gptq.compensate(weight, hessian, grid)
