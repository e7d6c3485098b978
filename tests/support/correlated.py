"""A layer whose inputs are correlated, and what quantizing it loses."""

from __future__ import annotations

import torch

from suffice.quant import gptq
from suffice.quant.hadamard import block_of, rotate
from suffice.quant.kmeans import KMeans
from suffice.quant.rtn import RTN


def layer(rows: int = 48, columns: int = 128, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight, and H of inputs that are correlated and of unequal size."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator) / columns**0.5
    scale = torch.exp(torch.randn(columns, generator=generator))
    x = torch.randn(1000, columns, generator=generator) @ (torch.eye(columns) + mix) * scale
    return torch.randn(rows, columns, generator=generator), x.T @ x / len(x)


def error(method: KMeans | RTN, weight: torch.Tensor, hessian: torch.Tensor) -> float:
    decoded = method.quantize(weight, hessian).decode()
    if isinstance(method, KMeans) and method.hadamard:
        decoded = rotate(decoded, block_of(weight.shape[1]))
    return gptq.loss(weight, decoded, hessian)
