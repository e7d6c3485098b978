"""A layer whose inputs are correlated, and what quantising it loses."""

from __future__ import annotations

import numpy as np

from draws import normal
from suffice.quant import gptq
from suffice.quant.hadamard import block_of, rotate
from suffice.quant.kmeans import KMeans
from suffice.quant.rtn import RTN


def layer(rows: int = 48, columns: int = 128, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A weight, and H of inputs that are correlated and of unequal size."""
    mix = normal(columns, columns, seed=seed) / np.float32(columns**0.5)
    scale = np.exp(normal(columns, seed=seed + 1))
    x = normal(1000, columns, seed=seed + 2) @ (np.eye(columns, dtype=np.float32) + mix) * scale
    return normal(rows, columns, seed=seed + 3), x.T @ x / len(x)


def error(method: KMeans | RTN, weight: np.ndarray, hessian: np.ndarray) -> float:
    decoded = method.quantize(weight, hessian).decode()
    if isinstance(method, KMeans) and method.hadamard:
        decoded = rotate(decoded, block_of(weight.shape[1]))
    return gptq.loss(weight, decoded, hessian)
