"""The one way the tests compare floating-point results."""

from __future__ import annotations

from typing import Any

import torch


def max_error(actual: Any, exact: Any) -> float:
    """Return the largest absolute difference of arrays or tensors, computed in float64."""
    actual, exact = torch.as_tensor(actual), torch.as_tensor(exact)
    assert actual.shape == exact.shape, f"shape {tuple(actual.shape)} != {tuple(exact.shape)}"
    assert torch.isfinite(actual).all(), "the result has NaN or infinite entries"
    return (actual.double() - exact.double()).abs().max().item()


def assert_matches(actual: Any, exact: Any, same_precision: Any, factor: float = 2.0) -> None:
    """Require that `actual` is at most `factor` times as far from the float64 result as plain
    PyTorch or NumPy at the same precision is.

    The floor, 4 units in the last place of float32 at the result's size, keeps the test fair when
    PyTorch happens to be exact.
    """
    exact = torch.as_tensor(exact)
    assert exact.dtype == torch.float64, "the exact result must be computed in float64"
    ours, theirs = max_error(actual, exact), max_error(same_precision, exact)
    floor = 4 * torch.finfo(torch.float32).eps * exact.abs().max().item()
    limit = max(factor * theirs, floor)
    assert ours <= limit, f"error {ours:.3e} > limit {limit:.3e} (PyTorch's error {theirs:.3e})"
