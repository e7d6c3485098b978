"""EXAQ: the paper's table, figure and algorithm, and what its levels stand for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from suffice.attention import SOFTMAXES
from suffice.attention.exaq import (
    EXAQ,
    TABLE,
    bias_of_clip,
    error_of_clip,
    quantize,
    softmax,
    solved,
)
from suffice.attention.exaq_km import EXAQKM, codebook, levels_of
from suffice.attention.rule import coded_rule
from suffice.attention.softmax import ExactSoftmax
from suffice.backends.cpu.rules import native_rule
from suffice.errors import InputError
from suffice.native import core

FAR = -100.0  # the least x of a calibration that clips nothing


def test_table_1() -> None:
    clips = [EXAQ(bits).clipping(2.0, FAR) for bits in (2, 3, 4)]
    assert clips == pytest.approx([-1.66 * 2 - 1.85, -1.75 * 2 - 2.06, -1.83 * 2 - 2.27])


@pytest.mark.parametrize("bits", TABLE)
def test_equation_5_gives_the_table(bits: int) -> None:
    """Solved, it is near the line where the line was fitted, and where the error is least."""
    for sigma in (0.9, 1.5, 2.0):
        assert solved(bits, sigma, 1) == pytest.approx(EXAQ(bits).clipping(sigma, FAR), rel=0.12)
    best = solved(bits, 1.5, 1)
    assert all(
        error_of_clip(bits, 1.5, best) < error_of_clip(bits, 1.5, best + step)
        for step in (-0.5, -0.05, 0.05, 0.5)
    )
    assert EXAQ(bits, clip="solve", keys=1).clipping(1.5, FAR) == best


def error_of_sums(bits: int, sigma: float, clip: float, keys: int) -> float:
    """Return the mean square error of sums of e^x over normal x, measured, over the keys."""
    x = np.random.default_rng(0).standard_normal((400_000 // keys, keys)) * sigma - 3.24 * sigma
    x = np.minimum(x, 0)
    levels = clip + quantize(x, clip, bits) * -clip / (2**bits - 1)
    return float(((np.exp(levels) - np.exp(x)).sum(-1) ** 2).mean()) / keys


def test_the_error_of_a_sum_has_the_bias_of_the_clip() -> None:
    """Of 4 bits, whose rounding has little bias of its own."""
    for sigma, clip in ((1.5, -4.0), (4.0, -5.0)):
        expected = error_of_clip(4, sigma, clip) + 999 * bias_of_clip(sigma, clip) ** 2
        assert expected == pytest.approx(error_of_sums(4, sigma, clip, 1000), rel=0.1)


@pytest.mark.parametrize("sigma", [0.9, 2.0, 3.4, 5.0, 8.0, 12.0])
@pytest.mark.parametrize("bits", TABLE)
def test_a_solved_clip_holds_for_broad_scores(bits: int, sigma: float) -> None:
    """Eq. 5 alone lets a thousand clipped keys outweigh the heaviest key; their sum does not."""
    alone, together = solved(bits, sigma, 1), EXAQ(bits, clip="solve").clipping(sigma, FAR)
    assert together == solved(bits, sigma, 1000) < alone
    added, added_alone = (1000 * bias_of_clip(sigma, clip) for clip in (together, alone))
    assert added < 0.4 and added_alone > 0.5 and added_alone > 10 * added
    if sigma <= 5.0:
        assert together == pytest.approx(EXAQ(bits).clipping(sigma, FAR), rel=0.4)


def test_equation_5_is_the_error_of_normal_inputs() -> None:
    """Rounding noise is taken as uniform and e^x as straight within a step: a few per cent."""
    sigma, clip, bits = 1.0, -4.0, 4
    x = np.random.default_rng(0).standard_normal(2_000_000) * sigma - 3.24 * sigma
    x = x[x <= 0]
    levels = clip + quantize(x, clip, bits) * -clip / (2**bits - 1)
    found = float(((np.exp(levels) - np.exp(x)) ** 2).mean())
    assert error_of_clip(bits, sigma, clip) == pytest.approx(found, rel=0.05)


def test_bad_keys() -> None:
    with pytest.raises(InputError, match="exaq: keys=0: must be at least 1 key"):
        EXAQ(clip="solve", keys=0)
    with pytest.raises(InputError, match="exaq: keys=1 with clip=table: needs clip=solve"):
        EXAQ(keys=1)


def test_no_clip_is_below_what_was_seen() -> None:
    assert EXAQ(2).clipping(9.0, -3.0) == -3.0
    assert EXAQ(2, clip="minmax").clipping(9.0, -37.5) == -37.5


def test_rounding_is_half_to_even_and_masked_entries_have_no_code() -> None:
    x = np.array([0.0, -0.5, -1.5, -2.5, -3.0, -9.0, -np.inf])
    assert quantize(x, -3.0, 2).tolist() == [3, 2, 2, 0, 0, 0, -1]
    levels = EXAQ(2).layer_levels(1.0, -3.0)
    assert levels.codes(x)[:-1].tolist() == [3, 2, 2, 0, 0, 0]


def test_figure_6() -> None:
    """Codes 0, 3, 0, 3 in a byte: LUT_sum has e^C + 1 + e^C + 1 for them."""
    row = np.array([-3.0, 0.0, -3.0, 0.0])
    e = np.array([math.exp(-3), 1.0, math.exp(-3), 1.0])
    np.testing.assert_allclose(softmax(row, -3.0, 2), e / (2 * math.exp(-3) + 2))


@pytest.mark.parametrize("bits", TABLE)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 1000])
def test_levels_are_algorithm_2(bits: int, length: int) -> None:
    random = np.random.default_rng(length)
    scores = 3 * random.standard_normal(length)
    scores[1:][random.random(length - 1) < 0.2] = -np.inf
    exaq = EXAQ(bits)
    levels = exaq.layer_levels(2.0, FAR)
    weights = levels.weigh(scores - scores.max())
    expected = softmax(scores, exaq.clipping(2.0, FAR), bits)
    np.testing.assert_allclose(weights / weights.sum(), expected)
    assert (expected[scores == -np.inf] == 0).all()


@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_packed_codes_are_algorithm_2(sigma: float, each_isa: str) -> None:
    """The extension's softmax with packed codes, of two query heads that have their own clips."""
    rng = np.random.default_rng(1)
    scores = sigma * rng.standard_normal((5, 2, 64), np.float32)
    clips = [EXAQ(2).clipping(sigma, FAR), EXAQ(2).clipping(sigma + 1, FAR)]
    levels = [EXAQ(2).levels_of_clip(clip) for clip in clips]
    coded = coded_rule(None, levels)
    assert coded is not None
    weights, sums = (scores / math.log(2)).astype(np.float32), np.empty(2, np.float32)
    core.soften_packed(weights, native_rule(coded), sums)
    for head, clip in enumerate(clips):
        expected = softmax(scores[:, head].ravel(), clip, 2)
        np.testing.assert_allclose(weights[:, head].ravel() / sums[head], expected, rtol=1e-5)
        assert len(np.unique(weights[:, head])) == 4


def test_what_packed_codes_refuse() -> None:
    scores, sums = np.zeros((1, 1, 64), np.float32), np.zeros(1, np.float32)
    for exaq in (EXAQ(3), EXAQ(2, tail="flush")):
        coded = coded_rule(None, [exaq.levels_of_clip(-4.0)])
        assert coded is not None
        with pytest.raises(ValueError, match="packed codes have 2 bits, and four weights"):
            core.soften_packed(scores, native_rule(coded), sums)
        with pytest.raises(ValueError, match="packed codes have 2 bits, and four weights"):
            core.softmax_seconds(scores, native_rule(coded), True, 1)
    with pytest.raises(ValueError, match="packed codes have 2 bits"):
        core.softmax_seconds(scores, None, True, 1)
    coded = coded_rule(None, [EXAQ(2).levels_of_clip(-4.0)])
    assert coded is not None
    with pytest.raises(ValueError, match="sums must have one entry per query head"):
        core.soften_packed(scores, native_rule(coded), np.zeros(2, np.float32))


@pytest.mark.parametrize("bits", TABLE)
def test_the_bound(bits: int) -> None:
    exaq = EXAQ(bits)
    clip = exaq.clipping(2.0, FAR)
    x = np.linspace(2 * clip, 0, 10_001)
    weights = exaq.layer_levels(2.0, FAR).weigh(x)
    inside = x >= clip
    off = np.abs(np.log(weights) - x)
    assert float(off[inside].max()) <= -clip / (2**bits - 1) / 2 + 1e-9
    assert float(np.abs(weights - np.exp(x))[~inside].max()) < math.exp(clip)


def test_a_flushed_tail_weighs_nothing() -> None:
    clipped, flushed = (EXAQ(3, tail=tail).layer_levels(2.0, FAR) for tail in ("clip", "flush"))
    assert flushed.weights == (0.0, *clipped.weights[1:]) and clipped.weights[0] > 0
    x = np.array([-50.0, 0.0])
    assert flushed.weigh(x).tolist() == [0, 1]
    assert flushed.values_read(x[None]).tolist() == [[False, True]]


def test_which_values_are_read() -> None:
    levels = EXAQ(2).layer_levels(2.0, FAR)
    x = np.array([[-np.inf, -50.0, 0.0, -50.0, -np.inf]])
    assert levels.values_read(x).tolist() == [[False, False, True, False, False]]


def test_a_codebook_is_the_best_there_is() -> None:
    """Against every way to cut a small histogram."""
    random = np.random.default_rng(1)
    mass, means = random.random(12), np.sort(random.random(12))
    mass[4] = 0

    def error(weights: np.ndarray) -> float:
        return float((mass * np.abs(means[:, None] - weights).min(-1) ** 2).sum())

    found = codebook(mass, means, 4)
    best = math.inf
    for cuts in itertools.combinations(range(1, 12), 3):
        parts = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]
        sums = [mass[part].sum() for part in parts]
        if min(sums) > 0:
            centres = [(mass[p] * means[p]).sum() / s for p, s in zip(parts, sums, strict=True)]
            best = min(best, error(np.array(centres)))
    assert list(found) == sorted(found)
    assert error(np.array(found)) == pytest.approx(best)


def test_a_codebook_of_few_bins_is_padded() -> None:
    assert codebook(np.array([1.0, 2.0]), np.array([0.25, 1.0]), 4) == (0.25, 1.0, 2.0, 3.0)


def test_the_nearest_centroid_stands_for_a_weight() -> None:
    weights = (0.01, 0.1, 0.4, 0.9)
    x = np.linspace(-8, 0, 4001)
    nearest = np.abs(np.exp(x)[:, None] - weights).argmin(-1)
    assert np.array_equal(levels_of(weights).codes(x), nearest)


def test_names() -> None:
    assert SOFTMAXES.build("exact") == ExactSoftmax()
    assert SOFTMAXES.build("exaq:bits=3,tail=flush") == EXAQ(3, tail="flush")
    assert SOFTMAXES.build("exaq_km:bits=3,prefill=true") == EXAQKM(3, prefill=True)
    assert EXAQ.exact_limit() is None and ExactSoftmax.exact_limit() == ExactSoftmax()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exaq:bits=5", "exaq: bits=5: must be 2, 3 or 4"),
        ("exaq_km:bits=1", "exaq_km: bits=1: must be 2, 3 or 4"),
        ("exaq:clip=tabel", "unknown clip of exaq 'tabel'. Did you mean 'table'?"),
        ("exaq:tail=cut", "unknown tail of exaq 'cut'."),
        ("exaq_km:tail=cut", "unknown tail of exaq_km 'cut'."),
        ("exaq:sigma=2", "softmax 'exaq' has no option 'sigma'."),
        ("exak", "unknown softmax 'exak'. Did you mean 'exaq'?"),
    ],
)
def test_bad_options(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        SOFTMAXES.build(text)
    assert str(error.value).startswith(message)
