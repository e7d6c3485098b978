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

import numpy as np

from suffice.quant.activations import Activations
from suffice.quant.coded import Coded


def concatenate(x: np.ndarray, w: np.ndarray, bits: int) -> np.ndarray:
    """Return the codes (x, w), with `bits` bits for `w`: step 1 of Fig. 3."""
    return (x.astype(np.int64) << bits) | w.astype(np.int64)


def cartesian(x_levels: np.ndarray, w_levels: np.ndarray) -> np.ndarray:
    """Return the products of all pairs of centroids, in the order of concatenated codes."""
    padded = np.pad(w_levels, (0, (1 << _bits(w_levels)) - len(w_levels)))
    return np.outer(x_levels, padded).reshape(-1)


def distribution(indices: np.ndarray, size: int, steps: np.ndarray | None = None) -> np.ndarray:
    """Count how often each index below `size` occurs in the last dimension: step 2 of Fig. 3.

    `steps`, of the shape of `indices`, are the increments (Fig. 3 b: "+n"); 1 if not given.
    """
    rows = indices.reshape(-1, indices.shape[-1]).astype(np.int64)
    counts = np.zeros((len(rows), size), np.int64)
    added = np.broadcast_to(1 if steps is None else steps, indices.shape).reshape(rows.shape)
    np.add.at(counts, (np.arange(len(rows))[:, None], rows), added)
    return counts.reshape(*indices.shape[:-1], size)


def index_matmul(x: Activations, w: Coded) -> np.ndarray:
    """Multiply W [N, K], without zero points, by a token's activations [K]: y [N] (Fig. 5).

    Pairs are counted over columns that share both scales.
    """
    grid, columns = w.grid, w.codes.shape[1]
    assert grid.zero is None, "codes with zero points are not supported"
    bits = _bits(grid.levels)
    terms = cartesian(x.levels, grid.levels)
    y = np.zeros(len(w.codes), np.float32)
    group = x.group or columns
    ends = {*range(grid.group, columns, grid.group), *range(group, columns, group)}
    for begin, end in itertools.pairwise(sorted(ends | {0, columns})):
        indices = concatenate(x.codes[begin:end], w.codes[:, begin:end], bits)
        counts = distribution(indices, len(terms))
        scale = x.scales[begin // group] * grid.scale[:, begin // grid.group]
        y += scale * (counts.astype(np.float32) @ terms)
    groups = x.places // grid.group
    y += grid.values(w.codes[:, x.places], groups) @ x.residual
    return y


def integer_matmul(scores: np.ndarray, codes: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Multiply integers [S] by coded values [S, D]: y [D] (Fig. 3 b).

    Counters step by the integer, so only the 2^v centroids of the values are summed. Scales of
    tokens must be in the scores before these are rounded to integers, because the sum runs over
    tokens.
    """
    counts = distribution(codes.T, len(levels), scores.astype(np.int64))
    y: np.ndarray = counts.astype(np.float32) @ levels
    return y


def multiply(a: Activations, b: Activations) -> np.ndarray:
    """Multiply two tokens' activations [K] element by element: Fig. 3 without steps 2 and 3."""
    terms = cartesian(a.levels, b.levels)
    y: np.ndarray = a.spread * b.spread * terms[concatenate(a.codes, b.codes, _bits(b.levels))]
    places = np.union1d(a.places, b.places)
    y[places] = a.decode()[places] * b.decode()[places]
    return y


def replaced(x: Activations, function: Callable[[np.ndarray], np.ndarray]) -> Activations:
    """Return f(x) for a pointwise function: codes stay, and f is applied to the centroids.

    Centroids are normalised, and f(s c) is not s f(c) for SiLU or GELU. So the few centroids are
    computed again for each token, with its one scale in them. Outliers are computed one by one.
    """
    return replace(
        x,
        levels=function(np.float32(x.scale) * x.levels),
        scales=np.ones(1, np.float32),
        kept=function(x.kept.copy()),
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
        x = replace(x, levels=np.zeros_like(x.levels), scales=np.ones(1, np.float32))
    shifted = replace(x, levels=x.levels - mean / x.scale, kept=x.kept - mean)
    return _scaled(shifted, (mean_square(shifted) + eps) ** -0.5)


def _mean(x: Activations, function: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the mean of f over a token's values: over its codes, then corrected for outliers."""
    counts = distribution(x.codes, len(x.levels))
    centroids = function(x.scale * x.levels).astype(np.float64)
    kept, replaced = (function(each).astype(np.float64) for each in (x.kept, x.dense[x.places]))
    return float((counts * centroids).sum() + (kept - replaced).sum()) / len(x.codes)


def _scaled(x: Activations, factor: float) -> Activations:
    return replace(x, scales=x.scales * factor, kept=x.kept * factor)


def _bits(levels: np.ndarray) -> int:
    return max((len(levels) - 1).bit_length(), 1)
