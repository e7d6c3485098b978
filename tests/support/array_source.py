"""A checkpoint's source of weights that are arrays; counts the rows that are read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class ArraySource:
    """Subclasses say how whole weights load, and which are in codes."""

    label = None

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights, self.read = dict(weights), 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: each.shape for name, each in self.weights.items()}

    def dtype(self, name: str) -> str:
        return self.weights[name].dtype.name

    def stored(self, name: str) -> tuple[str, int]:
        return self.dtype(name), self.weights[name].nbytes

    def load_rows(self, name: str, first: int, out: np.ndarray) -> None:
        self.read += len(out)
        out[...] = self.weights[name][first : first + len(out)]
