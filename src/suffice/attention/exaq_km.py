"""Softmax of few bits whose levels were learned, head by head.

EXAQ spaces its levels evenly in x and takes e^C for all that is clipped. Here both are free, for
each query head. A K-means on u = e^x says first which keys share a code: borders lie midway, in u,
between its centroids. A key of a row counts by how far a wrong weight moves the output o, with Z
the row's sum of u:

    sum over rows and keys of (u - centroid)^2 |v - o|^2 / Z^2

which takes errors of keys as independent. They are not: what a code weighs is wrong for all keys of
a row together. So weights and borders then make the mean square error of the output itself least,
see `suffice.attention.output_error`: weights for given borders by a linear system, borders one at a
time until none can move. That alone would read more of V, as more keys have a code above 0; so a
share of V has its price, in errors as large as the least.

Source   this project; K-means in one dimension, solved exactly over a histogram of x.
Bound    none per key: the mean square error is what the calibration makes least.
Cost     that of `exaq`.
Native   csrc/kernels/exaq.inl, csrc/attention/coded_traversal.cpp, csrc/kernels/traverse.inl
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.attention.exaq import check_bits, check_tail
from suffice.attention.softmax import Levels

if TYPE_CHECKING:
    import numpy as np

    from suffice.attention.calibration import Calibration
    from suffice.attention.output_error import OutputError


ROW_COST = 28.0  # of all rows of V, in the least error of a head


@dataclass(frozen=True)
class EXAQKM:
    """Levels from the calibration, 2^`bits` a head; `tail` as in `exaq`; `prefill`: prompts too."""

    alone = "bits"

    bits: int = 2
    tail: str = "clip"
    prefill: bool = False

    def __post_init__(self) -> None:
        check_bits("exaq_km", self.bits)
        check_tail("exaq_km", self.tail)

    @property
    def coded(self) -> bool:
        """Return that it has levels."""
        return True

    @classmethod
    def exact_limit(cls) -> None:
        """Return nothing."""

    def levels(self, calibration: Calibration) -> list[list[Levels]]:
        """Return the levels of each layer and query head, [L][H]."""
        return [
            [self._flushed(levels) for levels in layer]
            for layer in calibration.codebooks[self.bits]
        ]

    def _flushed(self, levels: Levels) -> Levels:
        weights = levels.weights
        return Levels(levels.borders, (0.0, *weights[1:])) if self.tail == "flush" else levels


def levels_of(weights: tuple[float, ...]) -> Levels:
    """Return the levels of ascending weights of which the nearest stands for each e^x."""
    pairs = itertools.pairwise(weights)
    return Levels(tuple(math.log((low + high) / 2) for low, high in pairs), weights)


def fitted(mass: np.ndarray, means: np.ndarray, error: OutputError, count: int) -> Levels:
    """Return a head's `count` levels; `mass` and `means` are those of `codebook`, by the bins of
    `error`.
    """
    from suffice.attention.output_error import EDGES, nearest_edges

    start = nearest_edges(levels_of(codebook(mass, means, count)).borders)
    edges = error.best_edges(start, ROW_COST)
    return Levels(tuple(EDGES[edges].tolist()), tuple(error.best_weights(edges).tolist()))


def codebook(mass: np.ndarray, means: np.ndarray, count: int) -> tuple[float, ...]:
    """Return the `count` centroids, ascending, that make the weighted square error least.

    `mass` [N] is the weight in each bin of a histogram and `means` [N] the mean u of what is in it,
    ascending. With fewer bins in use than centroids, the rest lie above and get nothing.
    """
    from suffice.quant.codebook import optimum

    used = mass > 0
    found = optimum(mass[used], means[used], count).tolist()
    return (*found, *(found[-1] * (2 + i) for i in range(count - len(found))))
