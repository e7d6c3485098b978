"""The error of attention by codes, from statistics of a calibration, against attention itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from suffice.attention.exaq import EXAQ, fitted_clip
from suffice.attention.exaq_km import codebook, fitted, levels_of
from suffice.attention.levels import Levels
from suffice.attention.output_error import BINS, EDGES, OutputError, nearest_edges

QUERIES, KEYS, SIZE = 40, 300, 16


class Sample:
    """Random queries of a head: scores and values, and their statistics computed row by row."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        scores = 2 * torch.randn(QUERIES, KEYS, dtype=torch.float64).numpy()
        self.x = scores - scores.max(-1, keepdims=True)
        self.v = torch.randn(KEYS, SIZE, dtype=torch.float64).numpy()
        self.v[0] = 0.01  # a sink that weighs much and means nothing
        self.x[:, 0] = 0.0
        u = np.exp(self.x)
        self.total = u.sum(-1)
        self.output = u @ self.v / self.total[:, None]
        gram, sums, keys = np.zeros((BINS, BINS)), np.zeros(BINS), np.zeros(BINS)
        self.mass, moment = np.zeros(BINS), np.zeros(BINS)
        for row, x in enumerate(self.x):
            bins = np.searchsorted(EDGES, x, side="right")
            off = (self.v - self.output[row]) / self.total[row]
            moved = np.zeros((BINS, SIZE))
            np.add.at(moved, bins, off)
            gram += moved @ moved.T
            np.add.at(sums, bins, 1 / self.total[row])
            np.add.at(keys, bins, 1)
            np.add.at(self.mass, bins, (off**2).sum(-1))
            np.add.at(moment, bins, (off**2).sum(-1) * u[row])
        self.means = moment / np.maximum(self.mass, 1e-300)
        self.error = OutputError(gram, sums, keys, QUERIES)

    def found(self, levels: Levels) -> float:
        """The mean square error of the output, with the mean of Z' / Z instead of each row's."""
        weights = levels.weigh(self.x)
        ratio = (weights.sum(-1) / self.total).mean()
        off = weights @ self.v - weights.sum(-1, keepdims=True) * self.output
        return float(((off / self.total[:, None]) ** 2).sum() / (ratio * QUERIES) ** 2)


@pytest.fixture(scope="module")
def sample() -> Sample:
    return Sample()


def at(edges: list[int], weights: np.ndarray) -> Levels:
    return Levels(tuple(EDGES[edges].tolist()), tuple(weights.tolist()))


@pytest.mark.parametrize("edges", [[3, 20, 50], [10, 11, 12], [0, 30, 71]])
def test_the_error_is_that_of_the_output(sample: Sample, edges: list[int]) -> None:
    weights = np.array([0.001, 0.05, 0.2, 0.9])
    expected = sample.found(at(edges, weights))
    assert sample.error.of(edges, weights) == pytest.approx(expected, rel=1e-9)
    assert sample.error.of(edges, 3 * weights) == pytest.approx(expected, rel=1e-9)


def test_the_best_weights_are_the_best(sample: Sample) -> None:
    edges = [20, 32, 55]
    best = sample.error.best_weights(edges)
    least = sample.error.of(edges, best)
    levels = at(edges, best)
    assert float((levels.weigh(sample.x).sum(-1) / sample.total).mean()) == pytest.approx(1)
    for code in range(4):
        for factor in (0.98, 1.02):
            other = best.copy()
            other[code] *= factor
            assert sample.error.of(edges, other) > least


def test_no_weight_is_negative() -> None:
    """A code whose best weight is below 0 weighs nothing, and neither does one without keys."""
    gram = np.zeros((BINS, BINS))
    gram[:2, :2] = [[1.0, 2.0], [2.0, 5.0]]
    sums = np.zeros(BINS)
    sums[:2] = [1.0, 1.0]
    error = OutputError(gram, sums, sums, 1)
    assert np.linalg.solve(gram[:2, :2], sums[:2])[1] < 0
    assert error.best_weights([0, 1, 2]) == pytest.approx([1, 0, 0, 0], abs=1e-6)


def test_fitted_levels_are_better(sample: Sample) -> None:
    """Than the best weights of the codes of the centroids, and these than the centroids."""
    centroids = levels_of(codebook(sample.mass, sample.means, 4))
    edges = nearest_edges(centroids.borders)
    weighed = at(edges, sample.error.best_weights(edges))
    assert sample.found(weighed) < 0.97 * sample.error.of(edges, np.array(centroids.weights))
    moved = sample.error.best_edges(edges, 0)
    assert sample.found(at(moved, sample.error.best_weights(moved))) < 0.97 * sample.found(weighed)


@pytest.mark.parametrize("row_cost", [0, 30])
def test_no_border_can_move(sample: Sample, row_cost: float) -> None:
    def cost(edges: list[int]) -> float:
        rows = float((sample.x >= EDGES[edges[0]]).mean())
        return sample.found(at(edges, sample.error.best_weights(edges))) / least + row_cost * rows

    start = [20, 32, 55]
    free = sample.error.best_edges(start, 0)
    least = sample.found(at(free, sample.error.best_weights(free)))
    edges = sample.error.best_edges(start, row_cost)
    for place, step in itertools.product(range(3), (-1, 1)):
        moved = list(edges)
        moved[place] += step
        if moved == sorted(set(moved)):
            assert cost(moved) >= cost(edges) - 1e-9


def test_rows_of_v_have_their_price(sample: Sample) -> None:
    """Fitted levels give fewer keys a code above 0 than the borders of least error."""
    levels = fitted(sample.mass, sample.means, sample.error, 4)
    free = sample.error.best_edges([20, 32, 55], 0)
    rows = [(sample.x >= border).mean() for border in (levels.borders[0], EDGES[free[0]])]
    assert rows[0] < 0.8 * rows[1]


def test_borders_stay_where_nothing_is_lost() -> None:
    keys = np.ones(BINS)
    assert OutputError(np.zeros((BINS, BINS)), keys, keys, 1).best_edges([3, 4, 5], 30) == [3, 4, 5]


def test_a_fitted_clip_is_the_best(sample: Sample) -> None:
    for bits, tail in ((2, "clip"), (3, "clip"), (2, "flush")):
        exaq = EXAQ(bits, tail=tail)
        best = fitted_clip(bits, tail, sample.error)
        off = {clip: sample.found(exaq.levels_of_clip(clip)) for clip in (best, -2.0, -12.0)}
        assert off[best] < off[-2.0] and off[best] < off[-12.0]


def test_the_nearest_edges_differ() -> None:
    assert nearest_edges([EDGES[3] + 0.01, EDGES[40] - 0.001, -0.001]) == [3, 40, 71]
    assert nearest_edges([-20.0, -19.0, -18.0]) == [0, 1, 2]
    assert nearest_edges([-0.003, -0.002, -0.001]) == [69, 70, 71]
