"""All experts that the model's rule sends a row to are computed.

Exact    always.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class All:
    """Nothing is left out."""

    @classmethod
    def exact_limit(cls) -> All:
        """Return the only setting."""
        return cls()

    @property
    def left_out(self) -> float:
        """0."""
        return 0.0

    def kept(self, weights: np.ndarray) -> np.ndarray:
        """Return which experts have a weight."""
        return np.asarray(weights != 0)
