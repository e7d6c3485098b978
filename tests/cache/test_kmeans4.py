"""Rows in 4-bit codes: rotated, times a scale one of 16 levels, keys with errors passed on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from caches import Rounding, cache_of, channel_scales, rotate
from suffice.native import core
from suffice.quant.codebook import codebook, codes_of

LEVELS = torch.tensor(core.ROW_LEVELS, dtype=torch.float64)
TRIED = torch.tensor(core.TRIED_FACTORS, dtype=torch.float64)
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
    return rotate(rows.double(), size & -size)


def nearest(x: torch.Tensor) -> torch.Tensor:
    return LEVELS[codes_of(x.numpy(), LEVELS.numpy()).astype(int)]


def reference(rows: torch.Tensor, moments: torch.Tensor | None = None) -> torch.Tensor:
    """Return what codes make of rotated rows [N, D]: with each of the scales tried, element after
    element is rounded with what the errors before it add; the least e' S e wins.
    """
    count, size = rows.shape
    metric = torch.eye(size, dtype=torch.float64) if moments is None else damped(moments)
    # S = U diag(w) U', U unit upper triangular, whose column i has what adds to i's aim.
    upper = torch.linalg.cholesky(metric.flip(0, 1)).flip(0, 1)
    passed = upper / upper.diagonal()
    scales = TRIED[:, None] * rows.square().mean(-1).sqrt() / core.ROW_LEVEL_UNIT  # [C, N]
    levels = torch.zeros(len(TRIED), count, size, dtype=torch.float64)
    for i in range(size):
        errors = rows[:, :i] - scales[..., None] * levels[..., :i]
        levels[..., i] = nearest((rows[:, i] + errors @ passed[:i, i]) / scales)
    best = ((rows @ metric) * levels).sum(-1) / ((levels @ metric) * levels).sum(-1)
    decoded = best[..., None] * levels
    errors = decoded - rows
    chosen = ((errors @ metric) * errors).sum(-1).argmin(0)
    return decoded[chosen, torch.arange(count)]


def damped(moments: torch.Tensor) -> torch.Tensor:
    size = len(moments)
    own = moments.double() / (moments.double().trace() / size)
    return own + 0.02 * torch.eye(size, dtype=torch.float64)


def assert_as_good(
    decoded: torch.Tensor, expected: torch.Tensor, rows: torch.Tensor, metric: torch.Tensor
) -> None:
    """Require that rotated rows [N, D] are those expected, but for some whose elements are between
    two levels, and that their errors are alike.
    """
    size = rows.abs().max(-1).values
    distance = (decoded - rows).abs() - (expected - rows).abs()  # elements may be midway, such as 0
    assert (distance.abs().max(-1).values < 1e-2 * size).double().mean() > 0.7
    ours, theirs = (
        torch.einsum("nd,de,ne->n", x - rows, metric, x - rows) / size**2
        for x in (decoded, expected)
    )
    assert ours.mean() < 1.05 * theirs.mean() and theirs.mean() < 1.05 * ours.mean()


@pytest.mark.parametrize("kind", ["normal", "outliers", "sizes", "one"])
def test_codes_are_the_reference_s(each_isa: str, kind: str) -> None:
    for size in SIZES:
        rows = rows_of(kind, size)
        cache = cache_of(rows, -rows, "kmeans4", rounding=None)
        for sign, decoded in ((1, cache.keys(0)), (-1, cache.values(0))):
            exact = sign * rotated(rows)[0]
            identity = torch.eye(size, dtype=torch.float64)
            assert_as_good(rotated(decoded)[0], reference(exact), exact, identity)


@pytest.mark.parametrize("kind", ["normal", "outliers", "sizes"])
@pytest.mark.parametrize("size", [16, 80, 512])
def test_errors_of_keys_are_passed_on(each_isa: str, size: int, kind: str) -> None:
    rows, rounding = rows_of(kind, size), Rounding(1, 1, size)
    mean, moments = rounding.means[0, 0].double(), rounding.moments[0, 0]
    metric, scales = damped(moments), channel_scales(size)
    exact = rotated(rows * scales)[0]
    share = (exact @ mean / (mean @ mean)).bfloat16().double()[:, None]
    expected = share * mean + reference(exact - share * mean, moments)
    decoded, plain = (
        rotated(cache_of(rows, rows, "kmeans4", rounding=how).keys(0) * scales)[0]
        for how in (rounding.native, None)
    )
    assert_as_good(decoded, expected, exact, metric)

    def error(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nd,de,ne->n", x - exact, metric, x - exact) / exact.square().sum(-1)

    assert error(decoded).mean() < 0.5 * error(plain).mean()


def test_the_mean_key_costs_nothing(each_isa: str) -> None:
    rounding = Rounding(1, 1, 64)
    mean = rotate(rounding.means[0], 64) / channel_scales(64)
    rows = mean[:, None] * torch.tensor([1.0, -0.25, 40.0, 0.0])[:, None]
    decoded = cache_of(rows, rows, "kmeans4", rounding=rounding.native).keys(0)
    torch.testing.assert_close(decoded, rows, rtol=0, atol=1e-3)


def test_levels_are_the_k_means_of_a_normal_variable() -> None:
    points = Normal(0.0, 1.0).icdf((torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000)
    optimum = torch.from_numpy(codebook(points.numpy(), np.ones(()), 16)).double()
    ours = LEVELS / core.ROW_LEVEL_UNIT
    least, found = (
        (points - levels[codes_of(points.numpy(), levels.numpy()).astype(int)]).square().mean()
        for levels in (optimum, ours)
    )
    assert found < 1.015 * least
    assert (LEVELS % 2 == 1).all() and (ours - optimum).abs().max() < 0.1


def test_normal_rows_lose_what_the_levels_lose(each_isa: str) -> None:
    torch.manual_seed(0)
    rows = torch.randn(2, 500, 128)
    cache = cache_of(rows, rows, "kmeans4", limit=512, rounding=None)
    for decoded in (cache.keys(0), cache.values(0)):
        assert 0.0075 < (decoded - rows).square().mean() < 0.0095


def test_a_row_of_zeros_stays_so(each_isa: str) -> None:
    rows = torch.zeros(1, 20, 64)
    rows[0, 3, 5] = 1.0
    cache = cache_of(rows, rows, "kmeans4")
    for decoded in (cache.keys(0), cache.values(0)):
        assert not decoded[0, [*range(3), *range(4, 20)]].any()
        assert torch.isfinite(decoded).all()


def test_a_row_has_half_a_byte_for_an_element_and_four_bytes() -> None:
    rows = torch.randn(1, 32, 64)
    assert cache_of(rows, rows, "kmeans4").row_bytes == 2 * (32 + 4)
    assert cache_of(rows, rows, "int8", value_dtype="kmeans4").row_bytes == 64 + 4 + 32 + 4


@pytest.mark.parametrize(
    ("dtype", "layers", "groups", "size"),
    [("int8", 1, 1, 64), ("kmeans4", 2, 1, 64), ("kmeans4", 1, 2, 64), ("kmeans4", 1, 1, 32)],
)
def test_a_rounding_of_other_keys_is_refused(
    dtype: str, layers: int, groups: int, size: int
) -> None:
    rows = torch.randn(1, 16, 64)
    with pytest.raises(ValueError, match="the key rounding must have the cache's layers"):
        cache_of(rows, rows, dtype, rounding=Rounding(layers, groups, size).native)
    with pytest.raises(ValueError, match=r"passed \[L, G, D, D\]"):
        core.KeyRoundings(*(torch.ones(1, 1, 16).numpy() for _ in range(4)))
    others = (torch.ones(1, 1, 16), torch.ones(1, 1, 16, 16), torch.ones(1, 1, 16))
    with pytest.raises(ValueError, match="scales must be positive"):
        core.KeyRoundings(torch.zeros(1, 1, 16).numpy(), *(each.numpy() for each in others))
