"""The one way the tests compare floating-point results."""

from __future__ import annotations

import torch


def max_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest absolute difference, computed in float64."""
    assert actual.shape == exact.shape, f"shape {tuple(actual.shape)} != {tuple(exact.shape)}"
    assert torch.isfinite(actual).all(), "the result has NaN or infinite entries"
    return (actual.double() - exact.double()).abs().max().item()


def assert_matches(
    actual: torch.Tensor, exact: torch.Tensor, same_precision: torch.Tensor, factor: float = 2.0
) -> None:
    """Require that `actual` is at most `factor` times as far from the float64 result as plain
    PyTorch at the same precision is.

    The floor, 4 units in the last place of float32 at the result's size, keeps the test fair when
    PyTorch happens to be exact.
    """
    assert exact.dtype == torch.float64, "the exact result must be computed in float64"
    ours, theirs = max_error(actual, exact), max_error(same_precision, exact)
    floor = 4 * torch.finfo(torch.float32).eps * exact.abs().max().item()
    limit = max(factor * theirs, floor)
    assert ours <= limit, f"error {ours:.3e} > limit {limit:.3e} (PyTorch's error {theirs:.3e})"
