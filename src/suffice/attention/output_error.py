"""The error of a coded softmax's attention output, as a function of its levels.

For a query with scores x_s relative to the largest, u_s = e^(x_s), Z = sum u_s and o = sum u_s v_s
/ Z, a table that weighs key s by w(c_s) gives o' = sum w(c_s) v_s / sum w(c_s). As o is a mean,

    o' - o = sum_c w(c) a_c / (Z' / Z),   a_c = sum over keys of code c of (v_s - o) / Z

with Z' the sum of weights. Over the queries of a calibration, and with Z' / Z by its mean,

    E(w) = w' G w / (w . m)^2,   G = sum a a',  m = sum n_c / Z,  n_c keys of code c

is the mean square error of the output. G and m for any borders follow from G and m of fine bins of
x. The weights that minimize E, G w = m, differ from the mean u of their keys: errors of keys of one
row add up, and a key whose value is near the output does not matter, whatever its weight, such as
the sink that many heads attend to.

Source   this project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Borders of bins of x, in nats: finer where e^x is larger, none below -14.
EDGES = np.concatenate(
    (
        np.arange(-14.0, -6.0, 0.5),
        np.arange(-6.0, -4.0, 0.25),
        np.arange(-4.0, -2.0, 0.125),
        np.arange(-2.0, 0.0, 0.0625),
    )
)
BINS = len(EDGES) + 1
_RIDGE = 1e-9  # share of the mean diagonal: keeps G invertible if a code has no key
_LEAST_RIDGE = 1e-30  # used if G is 0


def nearest_edges(borders: Sequence[float]) -> list[int]:
    """Return the edges nearest to ascending borders, distinct and ascending."""
    found: list[int] = []
    for place, border in enumerate(borders):
        last = len(EDGES) - (len(borders) - place)  # leaves room for the others
        nearest = int(np.abs(EDGES - border).argmin())
        found.append(min(max(nearest, found[-1] + 1 if found else 0), last))
    return found


def _descend(start: Sequence[int], cost: Callable[[list[int]], float]) -> list[int]:
    """Return edges at a local minimum of `cost`, where no move of one edge lowers it."""
    edges, least = list(start), cost(list(start))
    while True:
        better = next((moved for moved in _moves(edges) if cost(moved) < least), None)
        if better is None:
            return edges
        edges, least = better, cost(better)


def _moves(edges: list[int]) -> Iterator[list[int]]:
    """Yield copies of `edges` with one edge moved by up to 3 places, between its neighbours."""
    bounds = [-1, *edges, len(EDGES)]
    for place, edge in enumerate(edges):
        for step in (-3, -2, -1, 1, 2, 3):
            if bounds[place] < edge + step < bounds[place + 2]:
                yield [*edges[:place], edge + step, *edges[place + 1 :]]


@dataclass(frozen=True)
class OutputError:
    """E of one head: `gram` [BINS, BINS] and `sums` [BINS] are G and m with bins as codes.

    They are sums over `queries` queries.
    """

    gram: np.ndarray
    sums: np.ndarray
    keys: np.ndarray  # [BINS], the number of keys in each bin, over all queries
    queries: int

    def of(self, edges: Sequence[int], weights: np.ndarray) -> float:
        """Return E of codes with these edges, given as indices into `EDGES`, and weights."""
        gram, sums = self._merged(edges)
        return float(weights @ gram @ weights / (weights @ sums) ** 2)

    def best_weights(self, edges: Sequence[int]) -> np.ndarray:
        """Return the nonnegative weights that minimize E, with a mean Z' / Z of 1.

        A code whose best weight would be negative gets weight 0.
        """
        gram, sums = self._merged(edges)
        ridge = max(_RIDGE * np.trace(gram) / len(gram), _LEAST_RIDGE)
        gram = gram + np.eye(len(gram)) * ridge
        used = np.ones(len(sums), dtype=bool)
        weights = np.zeros(len(sums))
        while True:
            weights[:] = 0.0
            weights[used] = np.linalg.solve(gram[np.ix_(used, used)], sums[used])
            if (weights >= 0).all():
                scaled: np.ndarray = weights * (self.queries / (weights @ sums))
                return scaled
            positive = weights > 0
            # None may be positive if a few queries leave G close to singular.
            used &= positive if positive.any() else weights > weights.min()

    def best_edges(self, start: Sequence[int], row_cost: float) -> list[int]:
        """Search from `start` for edges that locally minimize, with their best weights,

            E / (the least E found when rows cost nothing) + row_cost * (share of keys of codes > 0)

        No move of a single edge lowers it. Only keys of codes above 0 need their values read.
        """
        least = self._of_best(_descend(start, self._of_best))
        if least <= 0:  # no edges cause any error
            return list(start)
        keys = self.keys.sum()
        return _descend(
            start,
            lambda edges: (
                self._of_best(edges) / least + row_cost * self.keys[edges[0] + 1 :].sum() / keys
            ),
        )

    def _of_best(self, edges: Sequence[int]) -> float:
        return self.of(edges, self.best_weights(edges))

    def _merged(self, edges: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return G and m of the codes between edges."""
        starts = [0, *(edge + 1 for edge in edges)]  # bin i lies below edge i
        gram = np.add.reduceat(np.add.reduceat(self.gram, starts, axis=0), starts, axis=1)
        return gram, np.add.reduceat(self.sums, starts)
