"""Weights as codes of a learned codebook: K-means, weighted by what an error costs.

    w[n, k] ~ scale[n, g] c[code[n, k]],    g = k // group

A layer has one codebook c of 2^w values in [-1, 1]; `group` inputs of an output channel share a
scale, or with none all of them. K-means is weighted by importance[k] scale[n, g]^2, so that what it
makes least is the loss of the layer, not that of the normalised weights. Importance is E[x^2] of an
input, or with compensation 1 / [H^-1]_kk, the loss that rounding this weight alone costs once the
others make up for it. With `fisher` tokens count in H as the Fisher information of what the layer
makes of them says (see `models.sensitivity`), which asks a calibration for a backward pass.

`kllm` is the paper: scales are largest magnitudes, nothing is compensated. `kmeans` adds, in this
order, alternating refinement of scales and codebook (`rounds`), GPTQ's error compensation onto the
codebook, and descent on codes and scales (`sweeps`). Without a calibration all inputs count the
same, and there is nothing to compensate with.

Source   KLLM, section III-A (2507.23035); importance with compensation: LeanQuant (2407.10032).
Bound    |w - q| <= scale * half the widest gap of the codebook, before compensation.
Exact    as many distinct normalised values as centroids.
Cost     w bits per weight and 16 / group for scales. With a=8 levels are whole numbers up to 63
         (`NARROW`): the error of 6 bits is 9 % more for it, that of 4 bits less than 1 %.
Native   csrc/kernels/linear_codes_layout.inl, csrc/kernels/linear_codes.inl,
         csrc/kernels/outliers.inl
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from suffice.errors import InputError, unknown
from suffice.quant import gptq
from suffice.quant.activations import Site, check_input_group
from suffice.quant.codebook import codebook
from suffice.quant.coded import (
    Coded,
    Grid,
    check_group,
    check_weight,
    group_of,
    grouped,
    stored,
)
from suffice.quant.hadamard import block_of, rotate
from suffice.quant.int8 import Int8
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes, pack_codes
from suffice.quant.sites import GROUPS, LINEAR, SITE_OF, VOCABULARY, chosen

__all__ = ["CODED_INPUTS", "EXACT", "INT8", "KLLM", "LEVELS", "NARROW", "KMeans"]

BITS = (2, 6)
LEVELS = ("int8", "float32")
INT8 = 127
NARROW = 63  # the greatest level where products with inputs of 8 bits are to fit 16
EXACT = 16  # bits of inputs that are left as they are
CODED_INPUTS = (3, 4)  # bits of inputs by codebook
OUTLIERS = 0.01  # of a token's inputs, half of them at each end


@dataclass(frozen=True)
class KMeans:
    """Codes of `w` bits; `levels` is the type of the centroids, `hadamard` rotates the inputs.

    A rotation pays where inputs keep 8 or 16 bits: of 3 or 4 it leaves no outliers to set apart.
    Inputs of 16 or 8 bits are rounded with a scale for each token, before the native product. Of 4
    or 3 bits they are brought to the levels of their site, but for outliers: so large a share of a
    token's values, half of it at each end, 1 % if not given; `a_group` inputs share a scale, or
    with none all of a token's. `sites` says which of a layer's inputs have `a` bits: all, or those
    of some matrices, such as `qkv+down`, and the others 16. `offline`: an outlier is what lies
    beyond thresholds that the calibration found, so large a share of its values, not each token's.
    """

    w: int = 4
    a: int = 16
    group: int | None = 32
    levels: str = "int8"
    rounds: int = 3
    compensate: bool = True
    sweeps: int = 2
    hadamard: bool = True
    fisher: bool = True
    outliers: float | None = None
    a_group: int | None = None
    sites: str = LINEAR
    offline: bool = False

    def __post_init__(self) -> None:
        if not BITS[0] <= self.w <= BITS[1]:
            raise InputError(f"kmeans: w={self.w} bits; allowed: {BITS[0]}..{BITS[1]}")
        if self.a not in (*CODED_INPUTS, *INPUT_LEVELS):
            raise InputError(f"kmeans: a={self.a} bits; allowed: 3, 4, 8, 16")
        check_group("kmeans", self.w, self.group)
        check_input_group("kmeans: a_group", self.a_group)
        if self.outliers is not None and not 0 <= self.outliers <= 1:
            raise InputError(f"kmeans: outliers={self.outliers}; allowed: 0..1")
        for option, value in (("outliers", self.outliers), ("a_group", self.a_group)):
            if value is not None and self.a not in CODED_INPUTS:
                raise InputError(f"kmeans: {option}={value} goes with a=3 or a=4, not a={self.a}")
        if self.offline and (self.a not in CODED_INPUTS or self.outliers == 0):
            raise InputError("kmeans: offline=true goes with a=3 or a=4 and outliers")
        if chosen(self.sites) != GROUPS[LINEAR] and self.a == EXACT:
            raise InputError(f"kmeans: sites={self.sites} goes with a=3, 4 or 8, not a={self.a}")
        if self.levels not in LEVELS:
            raise unknown("type of levels", self.levels, LEVELS)
        if min(self.rounds, self.sweeps) < 0:
            raise InputError(
                f"kmeans: rounds={self.rounds},sweeps={self.sweeps}; must be 0 or more"
            )

    def at(self, matrix: str) -> KMeans | Int8:
        """Return how a matrix is stored, by its name: embedding and head in int8.

        Where its site is not one of `sites`, its inputs keep 16 bits.
        """
        if matrix in VOCABULARY:
            return Int8()
        sites = chosen(self.sites)
        if sites == GROUPS[LINEAR] or SITE_OF.get(matrix) in sites:
            return self
        return replace(self, a=EXACT, outliers=None, a_group=None, sites=LINEAR, offline=False)

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedCodes:
        """Quantise a dense weight [N, K] without a calibration, and pack it.

        Raises:
            InputError: A weight that cannot be quantised, codes that cannot be packed, or inputs
                that need a calibration.
        """
        if self.a in CODED_INPUTS:
            raise InputError(
                f"a={self.a} bits for activations need a calibration: use `suffice quantize`, give "
                "st.quantise one, or give a=16"
            )
        return self.packed(self.quantise(weight), bias)

    def packed(
        self, coded: Coded, bias: torch.Tensor | None = None, site: Site | None = None
    ) -> PackedCodes:
        """Pack what `quantise` and `site` returned.

        Raises:
            InputError: Levels that are no int8, or groups that are not stored.
        """
        rotation = block_of(coded.codes.shape[1]) if self.hadamard else 0
        a = EXACT if self.a in CODED_INPUTS else self.a
        return pack_codes(coded, bias, rotation=rotation, a=a, site=site)

    def site(self, inputs: torch.Tensor) -> Site | None:
        """Learn the levels of a site from some tokens' inputs [T, K]; None: it has none."""
        if self.a not in CODED_INPUTS:
            return None
        if self.hadamard:
            inputs = rotate(inputs, block_of(inputs.shape[1]))
        share = OUTLIERS if self.outliers is None else self.outliers
        return Site.learn(inputs, self.a, share / 2, offline=self.offline, group=self.a_group)

    def quantise(
        self,
        weight: torch.Tensor,
        hessian: torch.Tensor | None = None,
        importance: torch.Tensor | None = None,
    ) -> Coded:
        """Return a weight [N, K], rotated first if `hadamard`, as codes.

        `hessian` is E[x x^T] [K, K] of the layer's inputs, weighted if `fisher`. `importance`, [K]
        or [N, K], replaces what weights the K-means.

        Raises:
            InputError: A weight that is not finite, or too large for float16 scales.
        """
        check_weight(weight)
        weight = weight.float()
        if self.hadamard:
            block = block_of(weight.shape[1])
            weight = rotate(weight, block)
            if hessian is not None:
                hessian = rotate(rotate(hessian, block).T.contiguous(), block)
        if importance is None:
            importance = self._importance(weight, hessian)
        grid = self._grid(weight, importance.float().expand(weight.shape))
        if hessian is None or not self.compensate:
            return grid.nearest(weight)
        coded = gptq.compensate(weight, hessian, grid)
        for _ in range(self.sweeps):
            coded = gptq.rescale(weight, hessian, coded)
            coded = replace(coded, grid=stored(coded.grid))
            coded = gptq.descend(weight, hessian, coded, 1)
        return coded

    def _importance(self, weight: torch.Tensor, hessian: torch.Tensor | None) -> torch.Tensor:
        if hessian is None:
            return torch.ones(weight.shape[1])
        hessian = gptq.damped(hessian)
        if not self.compensate:
            return hessian.diagonal()
        return 1 / gptq.inverse_factor(hessian).square().sum(0)

    def _grid(self, weight: torch.Tensor, importance: torch.Tensor) -> Grid:
        """Return the grid that K-means and its refinement find for a weight [N, K]."""
        group = group_of(self.group, weight)
        parts = grouped(weight, group)  # [N, groups, group]
        cost = grouped(importance, group)
        scale = parts.abs().amax(-1)
        levels = self._levels(parts, cost, scale)
        for _ in range(self.rounds):
            grid = Grid(levels, scale, group)
            values = levels[grouped(grid.nearest(weight).codes, group).int()]
            # The scale that is best for these codes: d loss / d scale = 0.
            square = (cost * values * values).sum(-1)
            best = (cost * parts * values).sum(-1) / torch.where(square > 0, square, 1)
            scale = torch.where(best > 0, best, scale)
            levels = self._levels(parts, cost, scale)
        return self._whole(Grid(levels, scale, group))

    def _levels(self, parts: torch.Tensor, cost: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
        weights = cost * scale.square()[..., None]
        if not (weights > 0).any():  # a weight of zeros
            weights = torch.ones_like(weights)
        return codebook(parts * inverse[..., None], weights, 2**self.w)

    def _whole(self, grid: Grid) -> Grid:
        """Return a grid whose levels are whole numbers, if they are to be int8."""
        if self.levels == "int8":
            most = NARROW if self.a == 8 else INT8
            unit = max(float(grid.levels.abs().max()), 1e-12) / most
            grid = replace(grid, levels=torch.round(grid.levels / unit), scale=grid.scale * unit)
        return stored(grid)


@dataclass(frozen=True)
class KLLM(KMeans):
    """The paper: a scale for each output channel, K-means and nothing else, 4-bit activations.

    With `offline` it is KLLM-S.
    """

    a: int = 4
    group: int | None = None
    rounds: int = 0
    compensate: bool = False
    sweeps: int = 0
    hadamard: bool = False
