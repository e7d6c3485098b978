"""How far attention by codes is from exact attention, as a function of its levels.

For a query with scores x_s relative to the largest, u_s = e^(x_s), Z = sum u_s and o = sum u_s v_s
/ Z, a table that weighs key s by w(c_s) gives o' = sum w(c_s) v_s / sum w(c_s). As o is a mean,

    o' - o = sum_c w(c) a_c / (Z' / Z),   a_c = sum over keys of code c of (v_s - o) / Z

with Z' the sum of weights. Over the queries of a calibration, and with Z' / Z by its mean,

    E(w) = w' G w / (w . m)^2,   G = sum a a',  m = sum n_c / Z,  n_c keys of code c

is the mean square error of the output. What G and m are for any borders follows from those of fine
bins of x. The weights that make E least, G w = m, differ from the mean u of their keys: errors of
keys of one row add up, and a key whose value is near the output does not matter, whatever it
weighs, such as the sink that many heads attend to.

Source   this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# Borders of bins of x, in nats: finer where e^x is larger, none below e^-14.
EDGES = np.concatenate(
    (
        np.arange(-14.0, -6.0, 0.5),
        np.arange(-6.0, -4.0, 0.25),
        np.arange(-4.0, -2.0, 0.125),
        np.arange(-2.0, 0.0, 0.0625),
    )
)
BINS = len(EDGES) + 1
_RIDGE = 1e-9  # of the mean diagonal: keeps G invertible if a code has no key


def nearest_edges(borders: Sequence[float]) -> list[int]:
    """Return which edges are nearest to ascending borders, each another one, ascending too."""
    found: list[int] = []
    for place, border in enumerate(borders):
        last = len(EDGES) - (len(borders) - place)  # leaves room for the others
        nearest = int(np.abs(EDGES - border).argmin())
        found.append(min(max(nearest, found[-1] + 1 if found else 0), last))
    return found


def _moves(edges: list[int], least: int) -> Iterator[list[int]]:
    """Yield edges of which one has moved a little, between its neighbours and not below `least`."""
    bounds = [least - 1, *edges, len(EDGES)]
    for place, edge in enumerate(edges):
        for step in (-3, -2, -1, 1, 2, 3):
            if bounds[place] < edge + step < bounds[place + 2]:
                yield [*edges[:place], edge + step, *edges[place + 1 :]]


@dataclass(frozen=True)
class OutputError:
    """E of one head: `gram` [BINS, BINS] and `sums` [BINS] are G and m of codes that are bins, over
    so many `queries`.
    """

    gram: np.ndarray
    sums: np.ndarray
    keys: np.ndarray  # [BINS], how many keys of these queries are in each bin
    queries: int

    def of(self, edges: Sequence[int], weights: np.ndarray) -> float:
        """Return E of codes between these edges, by their places in `EDGES`, and their weights."""
        gram, sums = self._merged(edges)
        return float(weights @ gram @ weights / (weights @ sums) ** 2)

    def best_weights(self, edges: Sequence[int]) -> np.ndarray:
        """Return the weights, none negative, that make E least, with a mean Z' / Z of 1.

        A code whose best weight would be negative weighs nothing.
        """
        gram, sums = self._merged(edges)
        gram = gram + np.eye(len(gram)) * (_RIDGE * np.trace(gram) / len(gram))
        used = np.ones(len(sums), dtype=bool)
        weights = np.zeros(len(sums))
        while True:
            weights[:] = 0.0
            weights[used] = np.linalg.solve(gram[np.ix_(used, used)], sums[used])
            if (weights >= 0).all():
                scaled: np.ndarray = weights * (self.queries / (weights @ sums))
                return scaled
            used &= weights > 0

    def least_edge(self, share: float) -> int:
        """Return from which place in `EDGES` on at most this share of keys is above an edge."""
        below = np.cumsum(self.keys[:-1])
        return int(np.searchsorted(below, (1 - share) * self.keys.sum()))

    def better_edges(self, start: Sequence[int], least: int) -> list[int]:
        """Return edges with best weights of which none can move, alone, to make E less.

        They start from `start`, and none goes below `least`, so far as there is room above it.
        """
        least = min(least, len(EDGES) - len(start))
        edges = [max(edge, least + place) for place, edge in enumerate(start)]
        error = self._of_best(edges)
        while True:
            better = next((m for m in _moves(edges, least) if self._of_best(m) < error), None)
            if better is None:
                return edges
            edges, error = better, self._of_best(better)

    def _of_best(self, edges: Sequence[int]) -> float:
        return self.of(edges, self.best_weights(edges))

    def _merged(self, edges: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return G and m of the codes between edges."""
        starts = [0, *(edge + 1 for edge in edges)]  # bin i lies below edge i
        gram = np.add.reduceat(np.add.reduceat(self.gram, starts, axis=0), starts, axis=1)
        return gram, np.add.reduceat(self.sums, starts)
