"""The one way the tests compare floating-point results."""

from __future__ import annotations

import numpy as np
import torch

Array = np.ndarray | torch.Tensor


def max_error(actual: Array, exact: Array) -> float:
    """Return the largest absolute difference, computed in float64."""
    assert actual.shape == exact.shape, f"shape {tuple(actual.shape)} != {tuple(exact.shape)}"
    ours, wanted = _float64(actual), _float64(exact)
    assert np.isfinite(ours).all(), "the result has NaN or infinite entries"
    return float(np.abs(ours - wanted).max())


def assert_matches(actual: Array, exact: Array, same_precision: Array, factor: float = 2.0) -> None:
    """Require that `actual` is at most `factor` times as far from the float64 result as plain
    PyTorch or NumPy at the same precision is.

    The floor, 4 units in the last place of float32 at the result's size, keeps the test fair when
    that happens to be exact.
    """
    assert exact.dtype in (np.float64, torch.float64), (
        "the exact result must be computed in float64"
    )
    ours, theirs = max_error(actual, exact), max_error(same_precision, exact)
    floor = 4 * float(np.finfo(np.float32).eps * np.abs(_float64(exact)).max())
    limit = max(factor * theirs, floor)
    assert ours <= limit, f"error {ours:.3e} > limit {limit:.3e} (plain error {theirs:.3e})"


def _float64(x: Array) -> np.ndarray:
    return x.detach().double().numpy() if isinstance(x, torch.Tensor) else x.astype(np.float64)
