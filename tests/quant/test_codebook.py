from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suffice.errors import InputError
from suffice.quant.codebook import codebook, codes_of


def loss(values: torch.Tensor, weights: torch.Tensor, centroids: torch.Tensor) -> float:
    found = centroids[codes_of(values, centroids).int()]
    return float((weights * (values - found) ** 2).sum())


def best_by_trial(values: torch.Tensor, weights: torch.Tensor, count: int) -> float:
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
    torch.manual_seed(seed)
    values, weights = torch.randn(size).double(), torch.rand(size).double() + 0.01
    found = loss(values, weights, codebook(values, weights, count).double())
    assert found <= best_by_trial(values, weights, count) + 1e-6


def test_enough_centroids_are_exact() -> None:
    values = torch.tensor([3.0, -1.0, 3.0, 0.5, -1.0, 7.0])
    centroids = codebook(values, torch.ones(6), 16)
    assert torch.equal(centroids[codes_of(values, centroids).int()], values)
    assert len(centroids) == 16 and (centroids.diff() >= 0).all()


def test_many_values_are_at_rest() -> None:
    """No centroid can be moved, and no random start of Lloyd's iteration ends 1 % lower."""
    torch.manual_seed(1)
    values, weights = torch.randn(20000).double(), torch.rand(20000).double()
    centroids = codebook(values, weights, 16).double()
    codes = codes_of(values, centroids).int()
    for j in range(16):
        own = codes == j
        mean = (weights[own] * values[own]).sum() / weights[own].sum()
        assert abs(float(mean - centroids[j])) < 1e-5
    # a normal distribution's best 16 levels: mean square 0.009501 (Max, 1960)
    assert loss(values, weights, centroids) / float(weights.sum()) == pytest.approx(
        0.0095, rel=0.04
    )


def test_weights_matter() -> None:
    values = torch.cat((torch.linspace(-1, -0.9, 100), torch.linspace(0.9, 1, 100)))
    weights = torch.cat((torch.full((100,), 1000.0), torch.ones(100)))
    assert int((codebook(values, weights, 8) < 0).sum()) == 7
    zero = torch.tensor([1.0, 1.0, 0.0])
    assert codebook(torch.tensor([1.0, 2.0, 99.0]), zero, 4).max() == 2


def test_weights_that_vanish_beside_others() -> None:
    values = torch.linspace(-1, 1, 300).double()
    weights = torch.where(values > 0.5, 1e-30, 1.0).double()
    centroids = codebook(values, weights, 32)
    assert torch.isfinite(centroids).all()
    assert loss(values, weights, centroids.double()) < 300 * (1.5 / 32 / 2) ** 2


def test_refused() -> None:
    with pytest.raises(InputError, match="NaN or infinite values or weights; all must be finite"):
        codebook(torch.tensor([1.0, float("nan")]), torch.ones(2), 2)
    with pytest.raises(InputError, match="no value has a weight above 0; at least one must"):
        codebook(torch.ones(2), torch.zeros(2), 2)
