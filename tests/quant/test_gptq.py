from __future__ import annotations

import numpy as np
import pytest

from correlated import error, layer
from suffice.quant import gptq
from suffice.quant.kmeans import KLLM, KMeans


def test_descent_never_raises_the_loss() -> None:
    weight, hessian = layer(columns=200)
    hessian = gptq.damped(hessian)
    coded = KLLM().quantize(weight, hessian)
    losses = [gptq.loss(weight, coded.decode(), hessian)]
    for _ in range(3):
        coded = gptq.descend(weight, hessian, coded, 1)
        losses.append(gptq.loss(weight, coded.decode(), hessian))
        coded = gptq.rescale(weight, hessian, coded)
        losses.append(gptq.loss(weight, coded.decode(), hessian))
    assert losses == sorted(losses, reverse=True), losses


def test_a_broken_compensation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that carries errors with the wrong sign is worse than none."""
    weight, hessian = layer()
    right = error(KMeans(sweeps=0), weight, hessian)
    factor = gptq.inverse_factor

    def flipped(hessian: np.ndarray) -> np.ndarray:
        found = factor(hessian)
        return 2 * np.diag(found.diagonal()) - found

    monkeypatch.setattr(gptq, "inverse_factor", flipped)
    grid = KMeans(compensate=False).quantize(weight, hessian).grid
    broken = gptq.compensate(weight, hessian, grid)
    assert gptq.loss(weight, broken.decode(), hessian) > 2 * right


@pytest.mark.parametrize("size", [1, 3, 100, 400])
def test_the_factor_is_that_of_the_inverse(size: int) -> None:
    """Upper triangular, and its square is H^-1; of more columns than are inverted at a time."""
    _, hessian = layer(columns=size)
    hessian = gptq.damped(hessian)
    factor = gptq.inverse_factor(hessian)
    assert factor.dtype == np.float32 and not np.tril(factor, -1).any()
    inverse = np.linalg.inv(hessian.astype(np.float64))
    found = factor.astype(np.float64)
    assert np.allclose(found.T @ found, inverse, rtol=1e-5, atol=1e-6 * np.abs(inverse).max())
