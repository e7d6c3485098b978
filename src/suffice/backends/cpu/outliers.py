"""The greatest and least of some values, selected by the extension."""

from __future__ import annotations

import numpy as np

from suffice.native import core
from suffice.quant.outliers import Outliers, check


def outliers(values: np.ndarray, count: int) -> Outliers:
    """Return the `count` greatest and least of float32 values [N], as `reference` does.

    Raises:
        InputError: A value that is not finite, or more to find than there are.
    """
    check(values, count)
    found = np.empty((2, count), dtype=np.int32)
    core.outliers(np.ascontiguousarray(values), found)
    return Outliers(found[0].tolist(), found[1].tolist())
