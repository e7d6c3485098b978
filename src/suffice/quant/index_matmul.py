"""Matmuls and pointwise functions on codes, as in the paper: indices, counts and few sums.

A product of two coded operands has only 2^(a + w) different terms. Instead of K floating-point
products and sums, concatenated codes are counted, and the terms are summed by their counts:

    y[n] = sum_g s_x[g] s[n, g] sum_ij counts[n, g, (i, j)] c_x[i] c_w[j]

This is the ordinary product in another order. A circuit gains from it; a CPU does not: one count is
a load and a store, while an integer dot product takes 32 terms at once. The engine computes the
same number in the way that suits a CPU, csrc/kernels/linear_codes.inl.

Source   KLLM, section III-B (Fig. 3), III-C (Eq. 2, 3; Fig. 4), III-D (Fig. 5) (2507.23035).
Exact    always: the product of the decoded operands within rounding.
Native   csrc/kernels/linear_codes.inl
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch

from suffice.quant.activations import Activations
from suffice.quant.coded import Coded

__all__ = [
    "cartesian",
    "concatenate",
    "distribution",
    "index_matmul",
    "integer_matmul",
    "layer_norm",
    "mean_square",
    "multiply",
    "replaced",
    "rms_norm",
]


def concatenate(x: torch.Tensor, w: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the codes (x, w), with `bits` bits for `w`: step 1 of Fig. 3."""
    return (x.long() << bits) | w.long()


def cartesian(x_levels: torch.Tensor, w_levels: torch.Tensor) -> torch.Tensor:
    """Return the products of all pairs of centroids, in the order of concatenated codes."""
    padded = w_levels.new_zeros(1 << _bits(w_levels))
    padded[: len(w_levels)] = w_levels
    return torch.outer(x_levels, padded).flatten()


def distribution(
    indices: torch.Tensor, size: int, steps: torch.Tensor | None = None
) -> torch.Tensor:
    """Count how often each index below `size` occurs in the last dimension: step 2 of Fig. 3.

    `steps`, of the shape of `indices`, are the increments (Fig. 3 b: "+n"); 1 if not given.
    """
    steps = torch.ones_like(indices) if steps is None else steps.expand(indices.shape)
    counts = steps.new_zeros(*indices.shape[:-1], size)
    return counts.scatter_add(-1, indices.long(), steps)


def index_matmul(x: Activations, w: Coded) -> torch.Tensor:
    """Multiply W [N, K], without zero points, by a token's activations [K]: y [N] (Fig. 5).

    Pairs are counted over columns that share both scales.
    """
    grid, columns = w.grid, w.codes.shape[1]
    assert grid.zero is None, "codes with zero points are not supported"
    bits = _bits(grid.levels)
    terms = cartesian(x.levels, grid.levels)
    y = torch.zeros(len(w.codes))
    group = x.group or columns
    ends = {*range(grid.group, columns, grid.group), *range(group, columns, group)}
    for begin, end in itertools.pairwise(sorted(ends | {0, columns})):
        indices = concatenate(x.codes[begin:end], w.codes[:, begin:end], bits)
        counts = distribution(indices, len(terms))
        scale = x.scales[begin // group] * grid.scale[:, begin // grid.group]
        y += scale * (counts.float() @ terms)
    groups = x.places // grid.group
    return y + grid.values(w.codes[:, x.places], groups) @ x.residual


def integer_matmul(scores: torch.Tensor, codes: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Multiply integers [S] by coded values [S, D]: y [D] (Fig. 3 b).

    Counters step by the integer, so only the 2^v centroids of the values are summed. Scales of
    tokens must be in the scores before these are rounded to integers, because the sum runs over
    tokens.
    """
    counts = distribution(codes.T, len(levels), scores.long())
    return counts.float() @ levels


def multiply(a: Activations, b: Activations) -> torch.Tensor:
    """Multiply two tokens' activations [K] element by element: Fig. 3 without steps 2 and 3."""
    terms = cartesian(a.levels, b.levels)
    y = a.spread * b.spread * terms[concatenate(a.codes, b.codes, _bits(b.levels))]
    places = torch.unique(torch.cat((a.places, b.places)))
    y[places] = a.decode()[places] * b.decode()[places]
    return y


def replaced(x: Activations, function: Callable[[torch.Tensor], torch.Tensor]) -> Activations:
    """Return f(x) for a pointwise function: codes stay, and f is applied to the centroids.

    Centroids are normalised, and f(s c) is not s f(c) for SiLU or GELU. So the few centroids are
    computed again for each token, with its one scale in them. Outliers are computed one by one.
    """
    return replace(
        x, levels=function(x.scale * x.levels), scales=torch.ones(1), kept=function(x.kept.clone())
    )


def mean_square(x: Activations) -> float:
    """Return the mean of x^2, from the counts of the codes."""
    return _mean(x, lambda values: values * values)


def rms_norm(x: Activations, eps: float) -> Activations:
    """Divide by the root mean square (Eq. 3): only the scale is divided."""
    return _scaled(x, (mean_square(x) + eps) ** -0.5)


def layer_norm(x: Activations, eps: float) -> Activations:
    """Normalize to mean 0 and variance 1: centroids are shifted, the scale is divided."""
    mean = _mean(x, lambda values: values)
    if not x.scale:  # all codes represent zeros
        x = replace(x, levels=torch.zeros_like(x.levels), scales=torch.ones(1))
    shifted = replace(x, levels=x.levels - mean / x.scale, kept=x.kept - mean)
    return _scaled(shifted, (mean_square(shifted) + eps) ** -0.5)


def _mean(x: Activations, function: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the mean of f over a token's values: over its codes, then corrected for outliers."""
    counts = distribution(x.codes, len(x.levels))
    total = (counts.double() * function(x.scale * x.levels).double()).sum()
    total += (function(x.kept).double() - function(x.dense[x.places]).double()).sum()
    return float(total) / len(x.codes)


def _scaled(x: Activations, factor: float) -> Activations:
    return replace(x, scales=x.scales * factor, kept=x.kept * factor)


def _bits(levels: torch.Tensor) -> int:
    return max((len(levels) - 1).bit_length(), 1)
