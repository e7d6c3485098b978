"""Random arrays of tests."""

from __future__ import annotations

import numpy as np


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return float32 values of a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
