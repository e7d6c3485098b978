"""Softmax of few bits with a table learned for each head.

EXAQ spaces its levels evenly in x and weighs all clipped keys e^C. Here borders and weights are
free, for each query head. First, K-means on u = e^x decides which keys share a code: borders lie
midway, in u, between centroids. A key counts by how far a wrong weight moves the output o, with Z
the sum of u over the row:

    sum over rows and keys of (u - centroid)^2 |v - o|^2 / Z^2

This treats the errors of keys as independent. They are not: the weight of a code is wrong for all
its keys in a row together. So a second step minimises the mean square error of the output itself
(`suffice.attention.output_error`): weights for given borders by a linear system, borders one at a
time until none moves. More keys with a code above 0 would mean more of V to read, so each share of
V read has a price, in units of the head's smallest error.

Source   ours; one-dimensional K-means, solved exactly over a histogram of x.
Bound    none per key; the calibration minimises the mean square error.
Cost     that of `exaq`.
Native   csrc/kernels/coded_attention.inl, csrc/attention/coded_traversal.cpp,
         csrc/kernels/traverse.inl
Example  exaq_km:bits=3
Options
    bits     bits of a code: 2, 3 or 4
    tail     clip: keys below the first border keep their learned weight; flush: they weigh nothing
    prefill  true: prompts use it too; false: prompts use the exact softmax
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from suffice.attention.exaq import check_bits
from suffice.attention.levels import Levels, check_tail
from suffice.registry import spelling

if TYPE_CHECKING:
    import numpy as np

    from suffice.attention.calibration import Calibration
    from suffice.attention.output_error import OutputError


ROW_COST = 28.0  # price of reading all rows of V, in units of a head's least error


@dataclass(frozen=True)
class EXAQKM:
    """Levels from the calibration, 2^`bits` a head; `tail` as in `exaq`; `prefill`: prompts too."""

    bits: int = field(default=2, metadata=spelling(alone=True))
    tail: str = "clip"
    prefill: bool = False

    def __post_init__(self) -> None:
        check_bits("exaq_km", self.bits)
        check_tail("exaq_km", self.tail)

    @property
    def coded(self) -> bool:
        """Return True: it has levels."""
        return True

    @classmethod
    def exact_limit(cls) -> None:
        """Return None: no setting equals the exact softmax."""

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
    """Return the levels of ascending weights; each e^x is replaced by the nearest weight."""
    pairs = itertools.pairwise(weights)
    return Levels(tuple(math.log((low + high) / 2) for low, high in pairs), weights)


def fitted(mass: np.ndarray, means: np.ndarray, error: OutputError, count: int) -> Levels:
    """Return a head's `count` levels; `mass` and `means` as in `codebook`, by bins of `error`."""
    from suffice.attention.output_error import EDGES, nearest_edges

    start = nearest_edges(levels_of(codebook(mass, means, count)).borders)
    edges = error.best_edges(start, ROW_COST)
    return Levels(tuple(EDGES[edges].tolist()), tuple(error.best_weights(edges).tolist()))


def codebook(mass: np.ndarray, means: np.ndarray, count: int) -> tuple[float, ...]:
    """Return the `count` centroids, ascending, that minimize the weighted square error.

    `mass` [N] is the weight of each bin of a histogram and `means` [N] the mean u in the bin,
    ascending. If there are more centroids than bins in use, the others lie above and stay unused.
    """
    from suffice.quant.codebook import optimum

    used = mass > 0
    found = optimum(mass[used], means[used], count).tolist()
    return (*found, *(found[-1] * (2 + i) for i in range(count - len(found))))
