from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from draws import normal
from oracle import assert_matches
from suffice.errors import InputError
from suffice.quant import index_matmul as module
from suffice.quant.activations import Activations, Site
from suffice.quant.coded import Coded, Grid
from suffice.quant.index_matmul import (
    cartesian,
    concatenate,
    distribution,
    index_matmul,
    integer_matmul,
    layer_norm,
    mean_square,
    multiply,
    replaced,
    rms_norm,
)
from suffice.quant.kmeans import KMeans


def tokens(rows: int = 8, columns: int = 96, seed: int = 0) -> np.ndarray:
    """Activations of unequal scale, some of them far out."""
    values = normal(rows, columns, seed=seed)
    values[:, 5] *= 30
    found: np.ndarray = values * np.exp(normal(rows, 1, seed=seed + 1))
    return found


def coded_weight(group: int | None, w: int = 4) -> Coded:
    method = KMeans(bits=w, group=group, compensate=False)
    return method.quantize(normal(40, 96, seed=1))


@pytest.mark.parametrize("of_inputs", [None, 16, 48])
@pytest.mark.parametrize("group", [None, 32, 64])
@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("share", [0.0, 0.02])
def test_index_product_is_the_decoded_product(
    group: int | None, bits: int, share: float, of_inputs: int | None
) -> None:
    values, weight = tokens(), coded_weight(group, bits)
    site = Site.learn(values, bits, share, group=of_inputs)
    for row in values:
        x = site.encode(row)
        dense, decoded = x.decode(), weight.decode()
        y = index_matmul(x, weight)
        assert_matches(y, decoded.astype(np.float64) @ dense, decoded @ dense, factor=8)


def test_a_broken_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose concatenation does not tell the operands apart."""
    values, weight = tokens(), coded_weight(None)
    x = Site.learn(values, 4).encode(values[0])
    monkeypatch.setattr(module, "concatenate", lambda x, w, bits: w.astype(int) << bits | x)
    with pytest.raises(AssertionError):
        exact = weight.decode().astype(np.float64) @ x.decode()
        assert_matches(index_matmul(x, weight), exact, exact.astype(np.float32), factor=8)


def test_figure_3a() -> None:
    """N = 4 outputs of K = 8 inputs, 1-bit activations and 2-bit weights, step by step."""
    x_codes, x_levels = np.uint8([0, 1, 1, 0, 1, 0, 0, 1]), np.float32([-0.5, 1.5])
    w_levels = np.float32([-1, -0.25, 0.5, 2])
    column = np.uint8([0, 1, 2, 3, 0, 1, 2, 3])
    w_codes = np.stack([np.roll(column, n) for n in range(4)])
    indices = concatenate(x_codes, w_codes, bits=2)
    assert indices[0].tolist() == [0b000, 0b101, 0b110, 0b011, 0b100, 0b001, 0b010, 0b111]
    assert indices.max() < 2**3
    counts = distribution(indices, 8)
    assert counts[0].tolist() == [1] * 8
    assert (counts.sum(-1) == 8).all()
    terms = cartesian(x_levels, w_levels)  # 2^(1 + 2) products, of no input
    assert terms.tolist() == [0.5, 0.125, -0.25, -1.0, -1.5, -0.375, 0.75, 3.0]
    y = counts.astype(np.float32) @ terms
    assert y.tolist() == (w_levels[w_codes] @ x_levels[x_codes]).tolist()
    one, none = np.ones(1, np.float32), np.empty(0, np.float32)
    x = Activations(x_codes, x_levels, one, none.astype(np.int64), none)
    grid = Grid(w_levels, np.ones((4, 1), np.float32), group=8)
    assert np.array_equal(index_matmul(x, Coded(w_codes, grid)), y)


def test_figure_3b() -> None:
    """Integers count for themselves: the counters step by +n, over the codebook of one operand."""
    codes = np.uint8([[0, 1], [1, 1], [0, 0], [1, 0]])
    levels = np.float32([-2, 0.5])
    scores = np.array([3, 1, 2, 5])
    counts = distribution(codes.T, 2, scores)
    assert counts.tolist() == [[5, 6], [7, 4]]
    assert integer_matmul(scores, codes, levels).tolist() == [-7.0, -12.0]
    assert np.array_equal(integer_matmul(scores, codes, levels), scores @ levels[codes])


def test_scores_carry_the_scales_of_the_tokens() -> None:
    """Scores times value scales, made integers of 8 bits, then the +n product: the dense one."""
    random = np.random.default_rng(0)
    codes, levels = random.integers(16, size=(50, 8)), np.sort(normal(16))
    weights, scales = np.exp(normal(50)), random.random(50) + 0.5
    weights /= weights.sum()
    folded = weights * scales
    unit = folded.max() / 255
    y = unit * integer_matmul(np.rint(folded / unit), codes, levels)
    exact = weights @ (scales[:, None] * levels[codes])
    assert np.abs(y - exact).max() <= 50 * unit / 2 * np.abs(levels).max()


def silu(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = x / (1 + np.exp(-x))
    return found


def gelu(x: np.ndarray) -> np.ndarray:
    return np.float32([v / 2 * (1 + math.erf(v / 2**0.5)) for v in x.tolist()])


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


@pytest.mark.parametrize("function", [silu, gelu, relu])
def test_functions_of_codes(function: Callable[[np.ndarray], np.ndarray]) -> None:
    """f of the centroids is f of what they stand for; SiLU(s c) is not s SiLU(c)."""
    values = tokens()
    x = Site.learn(values, 4, 0.02).encode(values[1])
    y = replaced(x, function)
    assert np.array_equal(y.codes, x.codes)
    assert np.allclose(y.decode(), function(x.decode()), atol=1e-6)
    assert len(x.places) == 4 and np.array_equal(y.decode()[x.places], function(x.kept))


@pytest.mark.parametrize("group", [None, 32])
def test_elements_times_elements(group: int | None) -> None:
    values = tokens()
    a, b = (Site.learn(values, 4, 0.02, group=group).encode(values[i]) for i in (2, 3))
    assert np.allclose(multiply(a, b), a.decode() * b.decode(), atol=1e-5)


def test_norms_are_scales() -> None:
    values = tokens()
    x = Site.learn(values, 4, 0.02).encode(values[4])
    dense = x.decode()
    assert mean_square(x) == pytest.approx(float(np.square(dense).mean()), rel=1e-5)
    rms = dense / np.sqrt(np.square(dense).mean() + 1e-5)
    assert np.allclose(rms_norm(x, 1e-5).decode(), rms, atol=1e-5)
    assert np.array_equal(rms_norm(x, 1e-5).levels, x.levels)
    layer = (dense - dense.mean()) / np.sqrt(dense.var() + 1e-5)
    assert np.allclose(layer_norm(x, 1e-5).decode(), layer, atol=1e-4)
    for kept in (0.0, 5.0):  # a token of zeros, and one whose outliers alone are none
        lone = np.zeros(96, np.float32)
        lone[7] = kept
        layer = (lone - lone.mean()) / np.sqrt(lone.var() + 1e-5)
        found = layer_norm(Site(x.levels, 0.02).encode(lone), 1e-5).decode()
        assert np.allclose(found, layer, atol=1e-4)


@pytest.mark.parametrize("offline", [False, True])
def test_outliers_and_inliers_are_the_input(offline: bool) -> None:
    values = tokens()
    site = Site.learn(values, 4, 0.02, offline=offline)
    for row in values:
        x = site.encode(row)
        assert np.array_equal(x.decode()[x.places], row[x.places])
        assert np.allclose(x.dense[x.places] + x.residual, row[x.places])
        inlier = np.ones(96, np.bool_)
        inlier[x.places] = False
        assert x.scale == float(np.abs(row[inlier]).max())
        gap = x.scale * float(np.diff(site.levels).max()) / 2
        assert np.abs((x.decode() - row)[inlier]).max() <= max(gap, x.scale * 0.5)
        if not offline:
            assert len(x.places) == 4


def test_enough_centroids_are_exact() -> None:
    values = np.random.default_rng(0).integers(-7, 8, (20, 64)).astype(np.float32)
    values[:, 0], values[:, 1] = 7, -7
    site = Site.learn(values, 4, 0.0)
    assert np.allclose(np.stack([site.encode(row).decode() for row in values]), values)
    half = Site(np.zeros(1, np.float32), 0.5)
    assert np.array_equal(half.encode(values[0]).decode(), values[0])


def test_outliers_lower_the_error() -> None:
    values = tokens(rows=40)
    errors = []
    for share in (0.0, 0.01, 0.05):
        site = Site.learn(values, 4, share)
        scaled = values / values.std(-1, keepdims=True)
        decoded = np.stack([site.encode(row).decode() for row in values])
        errors.append(float(np.square(decoded / values.std(-1, keepdims=True) - scaled).mean()))
    assert errors[0] > 4 * errors[1] > 4 * errors[2]


def test_a_group_is_coded_like_a_token() -> None:
    """Groups of 40 of 96 values: 40, 40 and 16, each by its own greatest inlier."""
    values = tokens()
    site = Site.learn(values, 4, 0.0, group=40)
    whole = Site(site.levels, 0.0)
    parts = [
        np.stack([whole.encode(part).decode() for part in values[:, at]])
        for at in (slice(0, 40), slice(40, 80), slice(80, 96))
    ]
    assert np.array_equal(site.rounded(values), np.concatenate(parts, 1))
    assert not np.array_equal(site.rounded(values), whole.rounded(values))
    x = site.encode(values[2])
    greatest = [float(np.abs(values[2, at : at + 40]).max()) for at in (0, 40, 80)]
    assert x.scales.tolist() == greatest
    with pytest.raises(ValueError, match="too many values to unpack"):
        _ = x.scale  # there is no one scale


def test_groups_lower_the_error() -> None:
    values = tokens(rows=40) * np.exp(np.linspace(-3, 3, 96, dtype=np.float32))
    errors = [
        np.linalg.norm(Site.learn(values, 3, 0.01, group=group).rounded(values) - values)
        for group in (None, 48, 16)
    ]
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("group", [None, 40])
@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.2])
def test_rounded_tokens_are_coded_one_by_one(
    share: float, offline: bool, group: int | None
) -> None:
    """All tokens at once against each alone, equal values and tokens of zeros among them."""
    values = np.rint(tokens() * 4) / 4  # many are equal
    values[3] = 0
    assert len(np.unique(values)) < values.size / 2
    site = Site.learn(values, 3, share, offline=offline, group=group)
    expected = np.stack([site.encode(row).decode() for row in values])
    assert np.array_equal(site.rounded(values), expected)
    assert not np.array_equal(Site(site.levels, 0.25).rounded(values), expected)
    values[1, 1] = np.inf
    with pytest.raises(InputError, match="activations have NaN or infinite values; all must be"):
        site.encode(values[1])
    with pytest.raises(InputError, match="activations have NaN or infinite values; all must be"):
        site.rounded(values)
