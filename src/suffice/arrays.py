"""Functions of arrays that NumPy lacks."""

from __future__ import annotations

import numpy as np


def softmax(values: np.ndarray) -> np.ndarray:
    """Return the softmax along the last axis, in the type of `values`; -infinity gives 0."""
    weights: np.ndarray = np.exp(values - values.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


def log_softmax(values: np.ndarray) -> np.ndarray:
    """Return the logarithm of the softmax along the last axis, in the type of `values`."""
    below: np.ndarray = values - values.max(-1, keepdims=True)
    below -= np.log(np.exp(below).sum(-1, keepdims=True))
    return below
