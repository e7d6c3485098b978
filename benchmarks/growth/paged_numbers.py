"""The numbers of growth.paged, the same in every engine's process; needs NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np


def numbers(heads: int, size: int, batch: int, length: int) -> tuple[Any, Any, Any]:
    """Return keys and values [length, heads, size] of every request, queries [batch, heads, size].

    The requests have keys and values of their own in memory, but of the same content.
    """
    random = np.random.default_rng(0)
    keys, values = random.standard_normal((2, length, heads, size), np.float32)
    return keys, values, random.standard_normal((batch, heads, size), np.float32)
