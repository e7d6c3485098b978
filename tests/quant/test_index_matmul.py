from __future__ import annotations

import pytest
import torch

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


def tokens(rows: int = 8, columns: int = 96, seed: int = 0) -> torch.Tensor:
    """Activations of unequal scale, some of them far out."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator)
    values[:, 5] *= 30
    return values * torch.exp(torch.randn(rows, 1, generator=generator))


def coded_weight(group: int | None, w: int = 4) -> Coded:
    method = KMeans(bits=w, group=group, compensate=False)
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(1))
    return method.quantize(weight)


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
        assert_matches(y, decoded.double() @ dense.double(), decoded @ dense, factor=8)


def test_a_broken_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose concatenation does not tell the operands apart."""
    values, weight = tokens(), coded_weight(None)
    x = Site.learn(values, 4).encode(values[0])
    monkeypatch.setattr(module, "concatenate", lambda x, w, bits: w.long() << bits | x.long())
    with pytest.raises(AssertionError):
        exact = weight.decode().double() @ x.decode().double()
        assert_matches(index_matmul(x, weight), exact, exact.float(), factor=8)


def test_figure_3a() -> None:
    """N = 4 outputs of K = 8 inputs, 1-bit activations and 2-bit weights, step by step."""
    x_codes, x_levels = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1]), torch.tensor([-0.5, 1.5])
    w_levels = torch.tensor([-1.0, -0.25, 0.5, 2.0])
    column = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    w_codes = torch.stack([column.roll(n) for n in range(4)])
    indices = concatenate(x_codes, w_codes, bits=2)
    assert indices[0].tolist() == [0b000, 0b101, 0b110, 0b011, 0b100, 0b001, 0b010, 0b111]
    assert indices.max() < 2**3
    counts = distribution(indices, 8)
    assert counts[0].tolist() == [1] * 8
    assert (counts.sum(-1) == 8).all()
    terms = cartesian(x_levels, w_levels)  # 2^(1 + 2) products, of no input
    assert terms.tolist() == [0.5, 0.125, -0.25, -1.0, -1.5, -0.375, 0.75, 3.0]
    y = counts.float() @ terms
    assert y.tolist() == (w_levels[w_codes] @ x_levels[x_codes]).tolist()
    none = torch.empty(0, dtype=torch.long)
    x = Activations(x_codes, x_levels, torch.ones(1), none, torch.empty(0))
    grid = Grid(w_levels, torch.ones(4, 1), group=8)
    assert torch.equal(index_matmul(x, Coded(w_codes.to(torch.uint8), grid)), y)


def test_figure_3b() -> None:
    """Integers count for themselves: the counters step by +n, over the codebook of one operand."""
    codes = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]])
    levels = torch.tensor([-2.0, 0.5])
    scores = torch.tensor([3, 1, 2, 5])
    counts = distribution(codes.T, 2, scores)
    assert counts.tolist() == [[5, 6], [7, 4]]
    assert integer_matmul(scores, codes, levels).tolist() == [-7.0, -12.0]
    assert torch.equal(integer_matmul(scores, codes, levels), scores.float() @ levels[codes])


def test_scores_carry_the_scales_of_the_tokens() -> None:
    """Scores times value scales, made integers of 8 bits, then the +n product: the dense one."""
    torch.manual_seed(0)
    codes, levels = torch.randint(16, (50, 8)), torch.randn(16).sort().values
    weights, scales = torch.randn(50).softmax(-1), torch.rand(50) + 0.5
    folded = weights * scales
    unit = folded.max() / 255
    y = unit * integer_matmul((folded / unit).round(), codes, levels)
    exact = weights @ (scales[:, None] * levels[codes])
    assert (y - exact).abs().max() <= 50 * unit / 2 * levels.abs().max()


@pytest.mark.parametrize(
    "function",
    [torch.nn.functional.silu, torch.nn.functional.gelu, torch.relu],
    ids=lambda each: each.__name__,
)
def test_functions_of_codes(function) -> None:  # type: ignore[no-untyped-def]
    """f of the centroids is f of what they stand for; SiLU(s c) is not s SiLU(c)."""
    values = tokens()
    x = Site.learn(values, 4, 0.02).encode(values[1])
    y = replaced(x, function)
    assert torch.equal(y.codes, x.codes)
    assert torch.allclose(y.decode(), function(x.decode()), atol=1e-6)
    assert len(x.places) == 4 and torch.equal(y.decode()[x.places], function(x.kept))


@pytest.mark.parametrize("group", [None, 32])
def test_elements_times_elements(group: int | None) -> None:
    values = tokens()
    a, b = (Site.learn(values, 4, 0.02, group=group).encode(values[i]) for i in (2, 3))
    assert torch.allclose(multiply(a, b), a.decode() * b.decode(), atol=1e-5)


def test_norms_are_scales() -> None:
    values = tokens()
    x = Site.learn(values, 4, 0.02).encode(values[4])
    dense = x.decode()
    assert mean_square(x) == pytest.approx(float(dense.square().mean()), rel=1e-5)
    rms = dense / (dense.square().mean() + 1e-5).sqrt()
    assert torch.allclose(rms_norm(x, 1e-5).decode(), rms, atol=1e-5)
    assert torch.equal(rms_norm(x, 1e-5).levels, x.levels)
    layer = torch.nn.functional.layer_norm(dense, dense.shape, eps=1e-5)
    assert torch.allclose(layer_norm(x, 1e-5).decode(), layer, atol=1e-4)
    for kept in (0.0, 5.0):  # a token of zeros, and one whose outliers alone are none
        lone = torch.zeros(96)
        lone[7] = kept
        layer = torch.nn.functional.layer_norm(lone, lone.shape, eps=1e-5)
        found = layer_norm(Site(x.levels, 0.02).encode(lone), 1e-5).decode()
        assert torch.allclose(found, layer, atol=1e-4)


@pytest.mark.parametrize("offline", [False, True])
def test_outliers_and_inliers_are_the_input(offline: bool) -> None:
    values = tokens()
    site = Site.learn(values, 4, 0.02, offline=offline)
    for row in values:
        x = site.encode(row)
        assert torch.equal(x.decode()[x.places], row[x.places])
        assert torch.allclose(x.dense[x.places] + x.residual, row[x.places])
        inlier = torch.ones(96, dtype=torch.bool)
        inlier[x.places] = False
        assert x.scale == float(row[inlier].abs().max())
        gap = x.scale * float(site.levels.diff().max()) / 2
        assert (x.decode() - row)[inlier].abs().max() <= max(gap, x.scale * 0.5)
        if not offline:
            assert len(x.places) == 4


def test_enough_centroids_are_exact() -> None:
    values = torch.randint(-7, 8, (20, 64)).float()
    values[:, 0], values[:, 1] = 7, -7
    site = Site.learn(values, 4, 0.0)
    assert torch.allclose(torch.stack([site.encode(row).decode() for row in values]), values)
    half = Site(torch.zeros(1), 0.5)
    assert torch.equal(half.encode(values[0]).decode(), values[0])


def test_outliers_lower_the_error() -> None:
    values = tokens(rows=40)
    errors = []
    for share in (0.0, 0.01, 0.05):
        site = Site.learn(values, 4, share)
        normal = values / values.std(-1, keepdim=True)
        decoded = torch.stack([site.encode(row).decode() for row in values])
        errors.append(float((decoded / values.std(-1, keepdim=True) - normal).square().mean()))
    assert errors[0] > 4 * errors[1] > 4 * errors[2]


def test_a_group_is_coded_like_a_token() -> None:
    """Groups of 40 of 96 values: 40, 40 and 16, each by its own greatest inlier."""
    values = tokens()
    site = Site.learn(values, 4, 0.0, group=40)
    whole = Site(site.levels, 0.0)
    parts = [
        torch.stack([whole.encode(part).decode() for part in values[:, at]])
        for at in (slice(0, 40), slice(40, 80), slice(80, 96))
    ]
    assert torch.equal(site.rounded(values), torch.cat(parts, 1))
    assert not torch.equal(site.rounded(values), whole.rounded(values))
    x = site.encode(values[2])
    greatest = [float(part.abs().max()) for part in torch.split(values[2], 40)]
    assert x.scales.tolist() == greatest
    with pytest.raises(ValueError, match="too many values to unpack"):
        _ = x.scale  # there is no one scale


def test_groups_lower_the_error() -> None:
    values = tokens(rows=40) * torch.linspace(-3, 3, 96).exp()
    errors = [
        float((Site.learn(values, 3, 0.01, group=group).rounded(values) - values).norm())
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
    values = tokens().mul(4).round().div(4)  # many are equal
    values[3] = 0
    assert values.unique().numel() < values.numel() / 2
    site = Site.learn(values, 3, share, offline=offline, group=group)
    expected = torch.stack([site.encode(row).decode() for row in values])
    assert torch.equal(site.rounded(values), expected)
    assert not torch.equal(Site(site.levels, 0.25).rounded(values), expected)
    values[1, 1] = float("inf")
    with pytest.raises(InputError, match="activations have NaN or infinite values; all must be"):
        site.encode(values[1])
    with pytest.raises(InputError, match="activations have NaN or infinite values; all must be"):
        site.rounded(values)
