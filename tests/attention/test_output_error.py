"""The error of attention by codes, from statistics of a calibration, against attention itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from suffice.attention.exaq import EXAQ, fitted_clip
from suffice.attention.exaq_km import ROWS, codebook, fitted, levels_of
from suffice.attention.output_error import BINS, EDGES, OutputError, nearest_edges
from suffice.attention.softmax import Levels

QUERIES, KEYS, SIZE = 40, 300, 16


class Sample:
    """Random queries of a head: scores and values, and their statistics computed row by row."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        scores = 2 * torch.randn(QUERIES, KEYS, dtype=torch.float64)
        self.x = scores - scores.max(-1, keepdim=True).values
        self.v = torch.randn(KEYS, SIZE, dtype=torch.float64)
        self.v[0] = 0.01  # a sink that weighs much and means nothing
        self.x[:, 0] = 0.0
        u = self.x.exp()
        self.total = u.sum(-1)
        self.output = u @ self.v / self.total[:, None]
        gram, sums, keys = np.zeros((BINS, BINS)), np.zeros(BINS), np.zeros(BINS)
        self.mass, moment = np.zeros(BINS), np.zeros(BINS)
        for row, x in enumerate(self.x):
            bins = np.searchsorted(EDGES, x.numpy(), side="right")
            off = (self.v - self.output[row]).numpy() / float(self.total[row])
            moved = np.zeros((BINS, SIZE))
            np.add.at(moved, bins, off)
            gram += moved @ moved.T
            np.add.at(sums, bins, 1 / float(self.total[row]))
            np.add.at(keys, bins, 1)
            np.add.at(self.mass, bins, (off**2).sum(-1))
            np.add.at(moment, bins, (off**2).sum(-1) * u[row].numpy())
        self.means = moment / np.maximum(self.mass, 1e-300)
        self.error = OutputError(gram, sums, keys, QUERIES)

    def found(self, levels: Levels) -> float:
        """The mean square error of the output, with the mean of Z' / Z in place of each row's."""
        weights = levels.weigh(self.x)
        ratio = (weights.sum(-1) / self.total).mean()
        off = weights @ self.v - weights.sum(-1, keepdim=True) * self.output
        return float((off / self.total[:, None]).square().sum() / (ratio * QUERIES) ** 2)


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
    weights = torch.tensor(best)
    levels = at(edges, best)
    assert float((levels.weigh(sample.x).sum(-1) / sample.total).mean()) == pytest.approx(1)
    for code in range(4):
        for factor in (0.98, 1.02):
            other = weights.clone()
            other[code] *= factor
            assert sample.error.of(edges, other.numpy()) > least


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
    moved = sample.error.better_edges(edges, 0)
    assert sample.found(at(moved, sample.error.best_weights(moved))) < 0.97 * sample.found(weighed)


def test_no_border_can_move(sample: Sample) -> None:
    edges = sample.error.better_edges([20, 32, 55], 25)
    least = sample.error.of(edges, sample.error.best_weights(edges))
    for place, step in itertools.product(range(3), (-1, 1)):
        moved = list(edges)
        moved[place] += step
        if moved[0] >= 25 and moved == sorted(set(moved)):
            assert sample.error.of(moved, sample.error.best_weights(moved)) >= least


@pytest.mark.parametrize("count", [4, 8])
def test_fitted_levels_read_few_rows(sample: Sample, count: int) -> None:
    """Of V: the share of keys with a code above 0."""
    levels = fitted(sample.mass, sample.means, sample.error, count)
    assert (sample.x >= levels.borders[0]).double().mean() <= ROWS * count
    lower = np.searchsorted(EDGES, levels.borders[0]) - 1
    assert (sample.x >= EDGES[lower]).double().mean() > ROWS * count, "as low as it may"


def test_there_is_room_for_all_borders(sample: Sample) -> None:
    """Even if fewer keys may be above the lowest than are at the peak."""
    assert sample.error.least_edge(0.0) == len(EDGES)
    assert sample.error.better_edges([3, 20, 50], len(EDGES)) == [69, 70, 71]


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
