"""A sum bounded at a confidence, from some of its addends."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from suffice.attention.block_sample_reference import (
    BlockSample,
    draw,
    highest_mean,
    mixed,
    uniform,
)


def test_the_numbers_are_splitmix64() -> None:
    """The first three of the generator's published sequence for the seed 0."""
    step = 0x9E3779B97F4A7C15
    found = [mixed(i * step & 2**64 - 1) for i in range(3)]
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    drawn = np.array([uniform(i) for i in range(1000)])
    assert 0 <= drawn.min() < 0.01 and 0.99 < drawn.max() < 1 and abs(drawn.mean() - 0.5) < 0.03


@pytest.mark.parametrize("draws", [1, 7, 64, 1000])
@pytest.mark.parametrize("delta", [0.5, 0.01, 1e-6])
def test_the_highest_mean_of_no_successes(draws: int, delta: float) -> None:
    """Where all draws are 0, the chance of that is (1 - q)^n itself."""
    assert highest_mean(0.0, draws, delta) == pytest.approx(1 - delta ** (1 / draws), rel=1e-9)
    assert highest_mean(1.0, draws, delta) == 1


def test_the_highest_mean_grows_as_it_should() -> None:
    for first, second in itertools.pairwise((0.5, 0.1, 0.01, 0.001)):
        assert highest_mean(0.1, 64, first) < highest_mean(0.1, 64, second)
    for first, second in itertools.pairwise((16, 64, 256)):
        assert highest_mean(0.1, first, 0.01) > highest_mean(0.1, second, 0.01)


SHARES = [
    np.ones(500),
    np.arange(500) ** 3.0,
    np.exp(np.random.default_rng(2).standard_normal(500) * 2),
    np.eye(1, 500, 3)[0] + 1e-4,
]


Draw = Callable[[np.ndarray, int, int], BlockSample]


def broken(made: Draw, shares: np.ndarray, most: int) -> list[str]:
    """Return the laws that bounds break, for addends that are parts of their shares, all or
    nothing, or those of every other block.
    """
    random, delta, runs = np.random.default_rng(1), 0.1, 300
    samples = [made(shares, most, mixed(seed)) for seed in range(runs)]
    holds = {"at most `most` blocks": all(int(each.chosen.sum()) <= most for each in samples)}
    for at, addends in enumerate(
        (
            shares * random.random(len(shares)),
            shares * (random.random(len(shares)) < 0.02),
            shares * (np.arange(len(shares)) % 2),
        )
    ):
        bounds = np.array([each.bound(addends, delta) for each in samples])
        beyond = float((bounds < addends.sum() * (1 - 1e-9)).mean())
        allowed = delta + 4 * (delta * (1 - delta) / runs) ** 0.5
        holds[f"{at}: seldom beyond"] = beyond <= allowed
        holds[f"{at}: at most all"] = bool(bounds.max() <= shares.sum() * (1 + 1e-9))
        holds[f"{at}: by chance"] = bool(bounds.std() > 0)
    return [law for law, held in holds.items() if not held]


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("most", [8, 64])
def test_sums_are_seldom_beyond_their_bounds(shares: np.ndarray, most: int) -> None:
    assert broken(draw, shares, most) == []


def drawn_evenly(shares: np.ndarray, most: int, seed: int) -> BlockSample:
    """Blocks are drawn whatever their shares, but weighted as if by these."""
    found = draw(np.where(shares > 0, 1.0, 0.0), most, seed)
    return dataclasses.replace(found, shares=shares)


def drawn_alike(shares: np.ndarray, most: int, seed: int) -> BlockSample:
    return draw(shares, most, 1)


class OfTheMean(BlockSample):
    """Takes the mean of what is drawn for its expectation."""

    def bound(self, addends: np.ndarray, delta: float) -> float:
        return super().bound(addends, 1 - 1e-12)


def without_confidence(shares: np.ndarray, most: int, seed: int) -> BlockSample:
    return OfTheMean(**vars(draw(shares, most, seed)))


@pytest.mark.parametrize("made", [drawn_evenly, drawn_alike, without_confidence])
def test_what_is_wrong_is_found(made: Draw) -> None:
    assert any(broken(made, shares, 64) for shares in SHARES)


def test_a_sum_of_few_blocks_is_known() -> None:
    addends = np.random.default_rng(3).random(20)
    for most in (20, 64):
        sample = draw(np.ones(20), most, 5)
        assert sample.sure.all()
        assert sample.bound(addends, 0.01) == pytest.approx(addends.sum())
    assert draw(np.zeros(20), 8, 5).bound(np.zeros(20), 0.01) == 0


def test_draws_are_in_proportion_to_shares() -> None:
    shares = np.array([4.0, 1, 0, 3, 2] * 20)
    times = np.sum([draw(shares, 10, mixed(seed)).times for seed in range(1000)], 0)
    assert times[2::5].sum() == 0
    np.testing.assert_allclose(times / 10000, shares / shares.sum(), atol=0.004)
