from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draws import normal
from suffice.errors import InputError
from suffice.quant.codebook import codebook, codes_of


def loss(values: np.ndarray, weights: np.ndarray, centroids: np.ndarray) -> float:
    found = centroids[codes_of(values, centroids)]
    return float((weights * (values - found) ** 2).sum())


def best_by_trial(values: np.ndarray, weights: np.ndarray, count: int) -> float:
    order = values.argsort()
    values, weights = values[order], weights[order]
    losses = []
    for cuts in itertools.combinations(range(1, len(values)), count - 1):
        total = 0.0
        for begin, end in itertools.pairwise((0, *cuts, len(values))):
            own, weight = values[begin:end], weights[begin:end]
            total += float((weight * (own - (weight * own).sum() / weight.sum()) ** 2).sum())
        losses.append(total)
    return min(losses)


@given(seed=st.integers(0, 1000), size=st.integers(5, 11), count=st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_few_values_get_the_optimum(seed: int, size: int, count: int) -> None:
    random = np.random.default_rng(seed)
    values, weights = random.standard_normal(size), random.random(size) + 0.01
    found = loss(values, weights, codebook(values, weights, count).astype(np.float64))
    assert found <= best_by_trial(values, weights, count) + 1e-6


def test_enough_centroids_are_exact() -> None:
    values = np.float32([3, -1, 3, 0.5, -1, 7])
    centroids = codebook(values, np.ones(6), 16)
    assert np.array_equal(centroids[codes_of(values, centroids)], values)
    assert len(centroids) == 16 and (np.diff(centroids) >= 0).all()


def test_many_values_are_at_rest() -> None:
    """No centroid can be moved, and no random start of Lloyd's iteration ends 1 % lower."""
    random = np.random.default_rng(1)
    values, weights = random.standard_normal(20000), random.random(20000)
    centroids = codebook(values, weights, 16).astype(np.float64)
    codes = codes_of(values, centroids)
    for j in range(16):
        own = codes == j
        mean = (weights[own] * values[own]).sum() / weights[own].sum()
        assert abs(float(mean - centroids[j])) < 1e-5
    # a normal distribution's best 16 levels: mean square 0.009501 (Max, 1960)
    assert loss(values, weights, centroids) / float(weights.sum()) == pytest.approx(
        0.0095, rel=0.04
    )


def test_weights_matter() -> None:
    values = np.concatenate((np.linspace(-1, -0.9, 100), np.linspace(0.9, 1, 100)))
    weights = np.repeat([1000.0, 1.0], 100)
    assert int((codebook(values, weights, 8) < 0).sum()) == 7
    assert codebook(np.float32([1, 2, 99]), np.float32([1, 1, 0]), 4).max() == 2


def test_weights_that_vanish_beside_others() -> None:
    values = np.linspace(-1, 1, 300)
    weights = np.where(values > 0.5, 1e-30, 1.0)
    centroids = codebook(values, weights, 32)
    assert np.isfinite(centroids).all()
    assert loss(values, weights, centroids.astype(np.float64)) < 300 * (1.5 / 32 / 2) ** 2


def test_refused() -> None:
    with pytest.raises(InputError, match="NaN or infinite values or weights; all must be finite"):
        codebook(np.float32([1, np.nan]), np.ones(2), 2)
    with pytest.raises(InputError, match="no value has a weight above 0; at least one must"):
        codebook(np.ones(2), np.zeros(2), 2)


def test_a_value_on_a_border_belongs_to_the_lower_centroid() -> None:
    """However many centroids there are, and however many values are compared at a time."""
    for count in (2, 16, 200):
        centroids = np.arange(count, dtype=np.float32)
        values = np.concatenate((centroids, centroids + np.float32(0.5), -centroids))
        expected = [min(max(-(-(2 * v - 1) // 2), 0), count - 1) for v in values.tolist()]
        assert codes_of(values, centroids).tolist() == expected
    many = normal(40000)
    assert codes_of(many, centroids).tolist() == [codes_of(v[None], centroids)[0] for v in many]


def test_very_many_values_are_put_into_bins() -> None:
    """Little is lost, and the result depends on no piece in which they are summed."""
    values, weights = normal(1 << 17), np.abs(normal(1 << 17, seed=1))
    exact = np.sort(values)
    found = codebook(values, weights, 16)
    again = codebook(exact[::2], weights[np.argsort(values)][::2], 16)
    assert np.abs(found - again).max() < 0.05
    order = np.argsort(values)
    assert np.allclose(codebook(exact, weights[order], 16), found, atol=1e-4)
