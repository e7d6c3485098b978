from __future__ import annotations

import pytest
import torch

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

    def flipped(hessian: torch.Tensor) -> torch.Tensor:
        found = factor(hessian)
        return 2 * torch.diag(found.diagonal()) - found

    monkeypatch.setattr(gptq, "inverse_factor", flipped)
    grid = KMeans(compensate=False).quantize(weight, hessian).grid
    broken = gptq.compensate(weight, hessian, grid)
    assert gptq.loss(weight, broken.decode(), hessian) > 2 * right
