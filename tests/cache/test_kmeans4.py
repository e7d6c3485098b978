"""Rows in 4-bit codes: rotated, times a scale the nearest of 16 levels."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from caches import cache_of
from suffice.native import core
from suffice.quant import hadamard
from suffice.quant.codebook import codebook, codes_of

LEVELS = torch.tensor(core.ROW_LEVELS, dtype=torch.float64)
SIZES = (16, 64, 80, 128, 256, 512)


def rows_of(kind: str, size: int) -> torch.Tensor:
    """Return 16 rows [1, 16, D]."""
    torch.manual_seed(size)
    rows = torch.randn(1, 16, size)
    if kind == "outliers":
        rows[..., :2] *= 50
    elif kind == "sizes":
        rows *= 10 ** torch.linspace(-6, 6, 16)[:, None]
    elif kind == "one":
        rows = torch.eye(size)[None, :16] - torch.eye(size)[None, :16].flip(-1) / 3
    return rows


def rotated(rows: torch.Tensor) -> torch.Tensor:
    size = rows.shape[-1]
    return hadamard.rotate(rows.double(), size & -size)


def nearest(x: torch.Tensor) -> torch.Tensor:
    return LEVELS[codes_of(x, LEVELS).long()]


def scale_of(row: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the scale of a decoded row [D], rotated, and its levels, which multiply it."""
    found = []
    for level in LEVELS[8:]:
        scale = row.abs().max() / level
        levels = nearest(row / scale)
        found.append(((row / scale - levels).abs().max().item(), scale.item(), levels))
    error, scale, levels = min(found, key=lambda each: each[0])
    assert error < 1e-3, "not levels times a scale"
    return scale, levels


@pytest.mark.parametrize("kind", ["normal", "outliers", "sizes", "one"])
@pytest.mark.parametrize("size", SIZES)
def test_codes_are_the_nearest_levels(each_isa: str, size: int, kind: str) -> None:
    rows = rows_of(kind, size)
    cache = cache_of(rows, -rows, "kmeans4")
    for sign, decoded in ((1, cache.keys(0)), (-1, cache.values(0))):
        for row, kept in zip(sign * rotated(rows)[0], rotated(decoded)[0], strict=True):
            scale, levels = scale_of(kept)
            error = (row - scale * levels).abs()
            least = (row[:, None] - scale * LEVELS).abs().min(-1).values
            assert (error <= least + 1e-5 * row.abs().max()).all()
            # No worse than with the scale that the deviation gives.
            plain = (row.square().mean().sqrt() / core.ROW_LEVEL_UNIT).item()
            usual = (row - plain * nearest(row / plain)).square().sum()
            assert error.square().sum() <= 1.001 * usual


def test_levels_are_the_k_means_of_a_normal_variable() -> None:
    points = Normal(0.0, 1.0).icdf((torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000)
    optimum = codebook(points, torch.ones(()), 16).double()
    ours = LEVELS / core.ROW_LEVEL_UNIT
    least, found = (
        (points - levels[codes_of(points, levels).long()]).square().mean()
        for levels in (optimum, ours)
    )
    assert found < 1.015 * least
    assert (LEVELS % 2 == 1).all() and (ours - optimum).abs().max() < 0.1


def test_normal_rows_lose_what_the_levels_lose(each_isa: str) -> None:
    torch.manual_seed(0)
    rows = torch.randn(2, 500, 128)
    cache = cache_of(rows, rows, "kmeans4", limit=512)
    for decoded in (cache.keys(0), cache.values(0)):
        assert 0.0085 < (decoded - rows).square().mean() < 0.0097


def test_a_row_of_zeros_stays_so(each_isa: str) -> None:
    rows = torch.zeros(1, 20, 64)
    rows[0, 3, 5] = 1.0
    cache = cache_of(rows, rows, "kmeans4")
    for decoded in (cache.keys(0), cache.values(0)):
        assert not decoded[0, [*range(3), *range(4, 20)]].any()
        assert torch.isfinite(decoded).all()


def test_a_row_has_half_a_byte_for_an_element_and_a_scale() -> None:
    rows = torch.randn(1, 32, 64)
    assert cache_of(rows, rows, "kmeans4").row_bytes == 2 * (32 + 4)
    assert cache_of(rows, rows, "int8", value_dtype="kmeans4").row_bytes == 64 + 4 + 32 + 4
