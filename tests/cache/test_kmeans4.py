"""Rows in 4-bit codes: rotated, times a scale one of 16 levels, keys with errors passed on."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from ml_dtypes import bfloat16

from caches import Rounding, cache_of, channel_scales, rotated
from rows import sixteen_rows
from suffice.native import core
from suffice.quant.codebook import codebook, codes_of

LEVELS = np.array(core.ROW_LEVELS, np.float64)
TRIED = np.array(core.TRIED_FACTORS, np.float64)
SIZES = (16, 64, 80, 128, 256, 512)


def held_as(rows: np.ndarray, rounding: core.KeyRoundings | None) -> np.ndarray:
    return cache_of(rows, rows, "kmeans4", rounding=rounding).keys(0)


def nearest(x: np.ndarray) -> np.ndarray:
    return LEVELS[codes_of(x, LEVELS).astype(int)]


def reference(rows: np.ndarray, moments: np.ndarray | None = None) -> np.ndarray:
    """Return what codes make of rotated rows [N, D]: with each of the scales tried, element after
    element is rounded with what the errors before it add; the least e' S e wins.
    """
    count, size = rows.shape
    metric = np.eye(size) if moments is None else damped(moments)
    # S = U diag(w) U', U unit upper triangular, whose column i has what adds to i's aim.
    upper = np.linalg.cholesky(metric[::-1, ::-1])[::-1, ::-1]
    passed = upper / upper.diagonal()
    scales = TRIED[:, None] * np.sqrt(np.square(rows).mean(-1)) / core.ROW_LEVEL_UNIT  # [C, N]
    levels = np.zeros((len(TRIED), count, size))
    for i in range(size):
        errors = rows[:, :i] - scales[..., None] * levels[..., :i]
        levels[..., i] = nearest((rows[:, i] + errors @ passed[:i, i]) / scales)
    best = ((rows @ metric) * levels).sum(-1) / ((levels @ metric) * levels).sum(-1)
    decoded = best[..., None] * levels
    errors = decoded - rows
    chosen = ((errors @ metric) * errors).sum(-1).argmin(0)
    return decoded[chosen, np.arange(count)]


def damped(moments: np.ndarray) -> np.ndarray:
    size = len(moments)
    own = moments.astype(np.float64)
    return own / (own.trace() / size) + 0.02 * np.eye(size)


def assert_as_good(
    decoded: np.ndarray, expected: np.ndarray, rows: np.ndarray, metric: np.ndarray
) -> None:
    """Require that rotated rows [N, D] are those expected, but for some whose elements are between
    two levels, and that their errors are alike.
    """
    size = np.abs(rows).max(-1)
    distance = np.abs(decoded - rows) - np.abs(expected - rows)  # elements may be midway, such as 0
    assert (np.abs(distance).max(-1) < 1e-2 * size).mean() > 0.7
    ours, theirs = (
        np.einsum("nd,de,ne->n", x - rows, metric, x - rows) / size**2 for x in (decoded, expected)
    )
    assert ours.mean() < 1.05 * theirs.mean() and theirs.mean() < 1.05 * ours.mean()


@pytest.mark.parametrize("kind", ["normal", "outliers", "sizes", "one"])
def test_codes_are_the_reference_s(each_isa: str, kind: str) -> None:
    for size in SIZES:
        rows = sixteen_rows(kind, size)
        cache = cache_of(rows, -rows, "kmeans4", rounding=None)
        for sign, decoded in ((1, cache.keys(0)), (-1, cache.values(0))):
            exact = sign * rotated(rows.astype(np.float64))[0]
            identity = np.eye(size)
            assert_as_good(
                rotated(decoded.astype(np.float64))[0], reference(exact), exact, identity
            )


@pytest.mark.parametrize("kind", ["normal", "outliers", "sizes"])
@pytest.mark.parametrize("size", [16, 80, 512])
def test_errors_of_keys_are_passed_on(each_isa: str, size: int, kind: str) -> None:
    rows, rounding = sixteen_rows(kind, size), Rounding(1, 1, size)
    mean, moments = rounding.means[0, 0].astype(np.float64), rounding.moments[0, 0]
    metric, scales = damped(moments), channel_scales(size)
    exact = rotated((rows * scales).astype(np.float64))[0]
    share = (exact @ mean / (mean @ mean)).astype(bfloat16).astype(np.float64)[:, None]
    expected = share * mean + reference(exact - share * mean, moments)
    decoded, plain = (
        rotated((held_as(rows, how) * scales).astype(np.float64))[0]
        for how in (rounding.native, None)
    )
    assert_as_good(decoded, expected, exact, metric)

    def error(x: np.ndarray) -> np.ndarray:
        return np.einsum("nd,de,ne->n", x - exact, metric, x - exact) / np.square(exact).sum(-1)

    assert error(decoded).mean() < 0.5 * error(plain).mean()


def test_the_mean_key_costs_nothing(each_isa: str) -> None:
    rounding = Rounding(1, 1, 64)
    mean = rotated(rounding.means[0]) / channel_scales(64)
    rows = mean[:, None] * np.float32([1.0, -0.25, 40.0, 0.0])[:, None]
    decoded = cache_of(rows, rows, "kmeans4", rounding=rounding.native).keys(0)
    np.testing.assert_allclose(decoded, rows, rtol=0, atol=1e-3)


def test_levels_are_the_k_means_of_a_normal_variable() -> None:
    normal = NormalDist()
    points = np.array([normal.inv_cdf((i + 0.5) / 40_000) for i in range(40_000)])
    optimum = codebook(points, np.ones(()), 16).astype(np.float64)
    ours = LEVELS / core.ROW_LEVEL_UNIT
    least, found = (
        np.square(points - levels[codes_of(points, levels).astype(int)]).mean()
        for levels in (optimum, ours)
    )
    assert found < 1.015 * least
    assert (LEVELS % 2 == 1).all() and np.abs(ours - optimum).max() < 0.1


def test_normal_rows_lose_what_the_levels_lose(each_isa: str) -> None:
    rows = np.random.default_rng(0).standard_normal((2, 500, 128), np.float32)
    cache = cache_of(rows, rows, "kmeans4", limit=512, rounding=None)
    for decoded in (cache.keys(0), cache.values(0)):
        assert 0.0075 < np.square(decoded - rows).mean() < 0.0095


def test_a_row_of_zeros_stays_so(each_isa: str) -> None:
    rows = np.zeros((1, 20, 64), np.float32)
    rows[0, 3, 5] = 1.0
    cache = cache_of(rows, rows, "kmeans4")
    for decoded in (cache.keys(0), cache.values(0)):
        assert not decoded[0, [*range(3), *range(4, 20)]].any()
        assert np.isfinite(decoded).all()


def test_a_row_has_half_a_byte_for_an_element_and_four_bytes() -> None:
    rows = np.ones((1, 32, 64), np.float32)
    assert cache_of(rows, rows, "kmeans4").row_bytes == 2 * (32 + 4)
    assert cache_of(rows, rows, "int8", value_dtype="kmeans4").row_bytes == 64 + 4 + 32 + 4


@pytest.mark.parametrize(
    ("dtype", "layers", "groups", "size"),
    [("int8", 1, 1, 64), ("kmeans4", 2, 1, 64), ("kmeans4", 1, 2, 64), ("kmeans4", 1, 1, 32)],
)
def test_a_rounding_of_other_keys_is_refused(
    dtype: str, layers: int, groups: int, size: int
) -> None:
    rows = np.ones((1, 16, 64), np.float32)
    with pytest.raises(ValueError, match="the key rounding must have the cache's layers"):
        cache_of(rows, rows, dtype, rounding=Rounding(layers, groups, size).native)
    with pytest.raises(ValueError, match=r"passed \[L, G, D, D\]"):
        core.KeyRoundings(*[np.ones((1, 1, 16), np.float32)] * 4)
    shapes = (1, 1, 16), (1, 1, 16), (1, 1, 16, 16), (1, 1, 16)
    scales, *others = (np.ones(shape, np.float32) for shape in shapes)
    with pytest.raises(ValueError, match="scales must be positive"):
        core.KeyRoundings(0 * scales, *others)
