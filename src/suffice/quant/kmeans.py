"""Codebook weights: K-means, weighted by what an error costs.

    w[n, k] ~ scale[n, g] c[code[n, k]],    g = k // group

A matrix has one codebook c of 2^bits centroids in [-1, 1]; `group` inputs of an output channel
share a scale (none: all of them). K-means is weighted by importance[k] scale[n, g]^2, so it
minimises the loss of the layer and not that of the normalised weights. The importance of an input
is E[x^2]; with compensation it is 1 / [H^-1]_kk, the loss of rounding this weight alone once the
others compensate. With `fisher` each token of the text counts in H by the Fisher information of the
layer's outputs (`suffice.quantize.sensitivity`), which needs a backward pass.

`kllm` is the paper's method: a scale is the largest magnitude, nothing is compensated. `kmeans`
adds, in this order, refinement of scales and codebook in turn (`rounds`), GPTQ's error compensation
onto the codebook, and descent on codes and scales (`sweeps`). Without a calibration text all inputs
count the same, and there is nothing to compensate with.

Source   KLLM, section III-A (2507.23035); importance with compensation: LeanQuant (2407.10032).
Differs  `kllm` rounds centroids to int8 steps unless `centroids=float32`. Codebooks of activations
         weigh all samples equally unless `act_fisher=true`, as in the paper. Fisher information of
         weights is one number per token, times x^2.
Bound    |w - q| <= scale * half the widest gap of the codebook, before compensation.
Exact    for a matrix whose weights, rotated and divided by their scales, take at most 2^bits
         values, up to the rounding of scales and centroids.
Cost     `bits` per weight and 16 / group for scales. With act_bits=8 centroids are whole numbers up
         to 63, not 127: this adds 9 % to the error of 6 bits, less than 1 % to that of 4 bits.
Native   csrc/kernels/linear_codes.inl, csrc/kernels/outliers.inl
Options
    bits        bits of a weight's code, 2 to 6
    act_bits    bits of activations: 16, 8, 4 or 3
    group       input channels that share a scale; none: one scale for an output channel
    centroids   type of the centroids: int8 or float32
    rounds      refinements of scales and codebook in turn
    compensate  GPTQ's error compensation; needs the text of `suffice quantize`
    sweeps      descents on codes and scales after that
    hadamard    rotate the inputs
    fisher      weigh the text's tokens by their Fisher information; needs `suffice quantize`
    outliers    with act_bits=4 or 3: share of a token's activations kept in 16 bits; none: 0.01
    act_group   with act_bits=4 or 3: activations that share a scale; none: all of a token's
    sites       matrices whose inputs have act_bits, such as qkv+down; the others have 16
    offline     true: outliers by thresholds of the calibration (KLLM-S); false: by each token
    act_fisher  with act_bits=4 or 3: weigh each activation in the K-means of its codebook by its
                Fisher information; needs `suffice quantize`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from suffice.errors import InputError, unknown
from suffice.quant import gptq
from suffice.quant.activations import Site, check_input_group
from suffice.quant.codebook import codebook, codes_of
from suffice.quant.coded import (
    Coded,
    Grid,
    check_group,
    check_weight,
    group_of,
    grouped,
    inverse_of,
    row_blocks,
    stored,
)
from suffice.quant.hadamard import block_of, rotate
from suffice.quant.int8 import Int8
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes, pack_codes
from suffice.quant.panels import Allocate
from suffice.quant.sites import EXACT, GROUPS, LINEAR, SITE_OF, VOCABULARY, chosen, in_dense_layer
from suffice.quant.sums import row_sums

__all__ = ["CODED_INPUTS", "EXACT", "INT8", "KLLM", "LEVELS", "NARROW", "KMeans"]

BITS = (2, 6)
LEVELS = ("int8", "float32")
INT8 = 127
NARROW = 63  # the greatest centroid for which products with 8-bit inputs fit 16 bits
CODED_INPUTS = (3, 4)  # bits of inputs that have a codebook
OUTLIERS = 0.01  # share of a token's inputs, half of them at each end


def fisher(gradients: np.ndarray) -> np.ndarray:
    """Return the Fisher information of activations [T, K] by their gradients, with mean 1."""
    squares = np.square(gradients.astype(np.float64))
    found: np.ndarray = squares / max(squares.mean(), np.finfo(np.float64).tiny)
    return found


@dataclass(frozen=True)
class KMeans:
    """Codebook weights of 2 to 6 bits, by K-means that weighs what an error costs.

    `centroids` is the centroids' type, `hadamard` rotates the inputs. A rotation pays if inputs
    have 8 or 16 bits; with 3 or 4 it would leave no outliers to keep exact. Inputs of 16 or 8 bits
    are rounded with a scale for every 32 of a token, before the native matmul. Inputs of 4 or 3
    bits are mapped to the codebook of their activation site, except for outliers: the share
    `outliers` of a token's values, half at each end, 1 % if not given. `act_group` inputs share a
    scale; none: all of a token. `sites` selects the inputs that have `act_bits` bits: all, or those
    of some matrices, such as `qkv+down`; the others have 16. `offline`: outliers are values beyond
    thresholds of the calibration, which leave this share of its values outside; not a share of each
    token's values.
    """

    dtype: ClassVar[None] = None
    calibrates: ClassVar[bool] = True

    bits: int = 4
    act_bits: int = 16
    group: int | None = 32
    centroids: str = "int8"
    rounds: int = 3
    compensate: bool = True
    sweeps: int = 2
    hadamard: bool = True
    fisher: bool = True
    outliers: float | None = None
    act_group: int | None = None
    sites: str = LINEAR
    offline: bool = False
    act_fisher: bool = False

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        if not BITS[0] <= self.bits <= BITS[1]:
            raise InputError(f"{name}: bits={self.bits}; allowed: {BITS[0]}..{BITS[1]}")
        if self.act_bits not in (*CODED_INPUTS, *INPUT_LEVELS):
            raise InputError(f"{name}: act_bits={self.act_bits}; allowed: 3, 4, 8, 16")
        check_group(name, self.group)
        check_input_group(f"{name}: act_group", self.act_group)
        if self.outliers is not None and not 0 <= self.outliers <= 1:
            raise InputError(f"{name}: outliers={self.outliers}; allowed: 0..1")
        for option, value in (("outliers", self.outliers), ("act_group", self.act_group)):
            if value is not None and self.act_bits not in CODED_INPUTS:
                raise InputError(
                    f"{name}: {option}={value} goes with act_bits=3 or 4, not {self.act_bits}"
                )
        if self.offline and (self.act_bits not in CODED_INPUTS or self.outliers == 0):
            raise InputError(f"{name}: offline=true goes with act_bits=3 or 4 and outliers")
        if self.act_fisher and self.act_bits not in CODED_INPUTS:
            raise InputError(
                f"{name}: act_fisher=true goes with act_bits=3 or 4, not {self.act_bits}"
            )
        if chosen(self.sites) != GROUPS[LINEAR] and self.act_bits == EXACT:
            raise InputError(
                f"{name}: sites={self.sites} goes with act_bits=3, 4 or 8, not {self.act_bits}"
            )
        if self.centroids not in LEVELS:
            raise unknown("type of centroids", self.centroids, LEVELS)
        if min(self.rounds, self.sweeps) < 0:
            raise InputError(
                f"{name}: rounds={self.rounds},sweeps={self.sweeps}: must be 0 or more"
            )

    @property
    def weighs_inputs(self) -> bool:
        """Whether codebooks of inputs are weighted by their Fisher information."""
        return self.act_fisher

    @property
    def needs_text(self) -> bool:
        """Whether it cannot store weights without a text: codebooks of inputs need one."""
        return self.act_bits in CODED_INPUTS

    @property
    def coded_bits(self) -> int:
        """Bits of the codes that `pack` chooses without a calibration."""
        return self.bits

    def for_matrix(self, matrix: str) -> KMeans | Int8:
        """Return the method for a matrix, by its name: embedding and head have int8.

        If its site is not one of `sites`, its inputs keep 16 bits.
        """
        if matrix in VOCABULARY:
            return Int8()
        sites = chosen(self.sites)
        if sites == GROUPS[LINEAR] or SITE_OF.get(in_dense_layer(matrix)) in sites:
            return self
        return replace(
            self,
            act_bits=EXACT,
            outliers=None,
            act_group=None,
            sites=LINEAR,
            offline=False,
            act_fisher=False,
        )

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = np.empty
    ) -> PackedCodes:
        """Quantize a dense weight [N, K] without a calibration, and pack it.

        Raises:
            InputError: A weight that cannot be quantized, codes that cannot be packed, or inputs
                that need a calibration.
        """
        if self.needs_text:
            raise InputError(
                f"act_bits={self.act_bits}: needs a calibration: use `suffice quantize`, "
                "give st.quantize one, or give act_bits=16"
            )
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
            InputError: Centroids that are not int8, or groups that cannot be stored.
        """
        rotation = block_of(coded.codes.shape[1]) if self.hadamard else 0
        a = EXACT if self.act_bits in CODED_INPUTS else self.act_bits
        return pack_codes(coded, bias, rotation=rotation, a=a, site=site, allocate=allocate)

    def site(self, inputs: np.ndarray, gradients: np.ndarray | None = None) -> Site | None:
        """Learn the codebook of a site from some tokens' inputs [T, K]; None: it has none.

        With `act_fisher` an input counts by the square of its gradient, of `gradients` [T, K].
        """
        if self.act_bits not in CODED_INPUTS:
            return None
        if not self.act_fisher:
            gradients = None
        if self.hadamard:
            block = block_of(inputs.shape[1])
            inputs = rotate(inputs, block)
            gradients = None if gradients is None else rotate(gradients, block)
        share = OUTLIERS if self.outliers is None else self.outliers
        importance = None if gradients is None else fisher(gradients)
        return Site.learn(
            inputs,
            self.act_bits,
            share / 2,
            importance,
            offline=self.offline,
            group=self.act_group,
        )

    def quantize(
        self,
        weight: np.ndarray,
        hessian: np.ndarray | None = None,
        importance: np.ndarray | None = None,
        levels: np.ndarray | None = None,
    ) -> Coded:
        """Return a weight [N, K], rotated first if `hadamard`, as codes.

        `hessian` is E[x x^T] [K, K] of the layer's inputs, weighted if `fisher`. `importance`, [K]
        or [N, K], replaces the weights of the K-means. `levels` are those of `shared_levels`.

        Raises:
            InputError: A weight that is not finite, or too large for float16 scales.
        """
        check_weight(weight)
        weight, hessian = self._rotated(weight, hessian)
        if importance is None:
            importance = self._importance(weight, hessian)
        grid = self._grid(weight, np.atleast_2d(importance.astype(np.float32)), levels)
        if hessian is None or not self.compensate:
            return grid.nearest(weight)
        coded = gptq.compensate(weight, hessian, grid)
        for _ in range(self.sweeps):
            coded = gptq.rescale(weight, hessian, coded)
            coded = replace(coded, grid=stored(coded.grid))
            coded = gptq.descend(weight, hessian, coded, 1)
        return coded

    def shared_levels(self, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return the codebook of weights [N, K] that share one, given with H of their inputs."""
        weights, costs = [], []
        for part in parts:  # one H at a time is in memory
            weight, hessian = self._rotated(*part)
            weights.append(weight)
            costs.append(np.broadcast_to(self._importance(weight, hessian), weight.shape))
        cost = np.concatenate(costs).astype(np.float32)
        return self._refined_grid(np.concatenate(weights), cost).levels

    def _rotated(
        self, weight: np.ndarray, hessian: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a weight and H of its inputs as they are quantized, rotated if `hadamard`."""
        weight = weight.astype(np.float32, copy=False)
        if not self.hadamard:
            return weight, hessian
        block = block_of(weight.shape[1])
        if hessian is not None:
            hessian = rotate(np.ascontiguousarray(rotate(hessian, block).T), block)
        return rotate(weight, block), hessian

    def _importance(self, weight: np.ndarray, hessian: np.ndarray | None) -> np.ndarray:
        if hessian is None:
            return np.ones(weight.shape[1], np.float32)
        hessian = gptq.damped(hessian)
        if not self.compensate:
            return hessian.diagonal()
        found: np.ndarray = 1 / np.square(gptq.inverse_factor(hessian)).sum(0)
        return found

    def _grid(
        self, weight: np.ndarray, importance: np.ndarray, levels: np.ndarray | None = None
    ) -> Grid:
        """Return the grid of a weight [N, K], of importance [N, K] or [1, K]."""
        return self._whole(self._refined_grid(weight, importance, levels))

    def _refined_grid(
        self, weight: np.ndarray, importance: np.ndarray, given: np.ndarray | None = None
    ) -> Grid:
        """Return the grid from K-means and its refinement, or with `given` levels."""
        group = group_of(self.group, weight)
        parts = grouped(weight, group)  # [N, groups, group]
        cost = grouped(importance, group)
        scale = np.abs(parts).max(-1)
        levels = self._levels(parts, cost, scale) if given is None else given
        for _ in range(self.rounds):
            for own in row_blocks(weight):
                by = cost[own] if len(cost) > 1 else cost
                scale[own] = _refined(parts[own], by, scale[own], levels)
            levels = self._levels(parts, cost, scale) if given is None else given
        return Grid(levels, scale, group)

    def _levels(self, parts: np.ndarray, cost: np.ndarray, scale: np.ndarray) -> np.ndarray:
        weights = cost * np.square(scale)[..., None]
        if not (weights > 0).any():  # a weight of zeros
            weights = np.ones_like(weights)
        return codebook(parts * inverse_of(scale)[..., None], weights, 2**self.bits)

    def _whole(self, grid: Grid) -> Grid:
        """Return a grid with its centroids rounded to integers, if they are int8."""
        if self.centroids == "int8":
            most = NARROW if self.act_bits == 8 else INT8
            unit = np.float32(max(float(np.abs(grid.levels).max()), 1e-12) / most)
            grid = replace(grid, levels=np.rint(grid.levels / unit), scale=grid.scale * unit)
        return stored(grid)


def _refined(
    parts: np.ndarray, cost: np.ndarray, scale: np.ndarray, levels: np.ndarray
) -> np.ndarray:
    """Return the best scales for the codes that groups [N, G, group] have by these scales.

    They solve d loss / d scale = 0; a scale that would not be positive stays.
    """
    values = levels[codes_of(parts * inverse_of(scale)[..., None], levels)]
    square = row_sums(cost * values * values)
    best = row_sums(cost * parts * values) / np.where(square > 0, square, 1)
    return np.where(best > 0, best, scale)


@dataclass(frozen=True)
class KLLM(KMeans):
    """KLLM's own method: one scale per output channel, plain K-means, 4-bit activations.

    With `offline` it is KLLM-S.
    """

    act_bits: int = 4
    group: int | None = None
    rounds: int = 0
    compensate: bool = False
    sweeps: int = 0
    hadamard: bool = False
