"""The reference of a sum's bound at a confidence, with the draws of csrc/attention/block_sample.h.

Hoeffding (1963), "Probability Inequalities for Sums of Bounded Random Variables", Theorem 1: let
the mean of n independent variables in [0, 1] have the expectation q. It is at most p < q with a
probability of at most

    ((q / p)^p ((1 - q) / (1 - p))^(1 - p))^n  =  e^(-n kl(p || q))                            (2.1)

so with a probability of 1 - delta, q is at most the largest one with n kl(p || q) <= ln 1 / delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

ROUNDING = 1e-9  # of sums of shares


def highest_mean(mean: float, draws: int, delta: float) -> float:
    """Return the largest expectation that a mean of draws in [0, 1] leaves possible."""
    if draws == 0:
        return 1.0
    low, high = mean, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if middle == 1:
            break
        divergence = 0.0
        if mean > 0:
            divergence += mean * math.log(mean / middle)
        if mean < 1:
            divergence += (1 - mean) * math.log((1 - mean) / (1 - middle))
        low, high = (middle, high) if draws * divergence <= -math.log(delta) else (low, middle)
    return high


@dataclass(frozen=True)
class BlockSample:
    """Of all blocks [B]: their `shares`, whether they are `sure`, and how often each was drawn."""

    shares: np.ndarray
    sure: np.ndarray
    times: np.ndarray
    draws: int

    @property
    def certain(self) -> bool:
        """Whether nothing is left to chance."""
        return not self.shares[~self.sure].any()

    @property
    def chosen(self) -> np.ndarray:
        """The blocks whose addends are looked at, bool [B]."""
        chosen: np.ndarray = self.sure | (self.times > 0)
        return chosen

    def bound(self, addends: np.ndarray, delta: float) -> float:
        """Bound the sum of addends [B], each at most its share, from those of chosen blocks."""
        known, rest = float(addends[self.sure].sum()), float(self.shares[~self.sure].sum())
        if self.certain:
            return known
        drawn = np.divide(addends, self.shares, out=np.zeros_like(addends), where=self.times > 0)
        mean = float((self.times * drawn).sum() / self.draws) if self.draws else 1.0
        return known + rest * highest_mean(min(mean, 1.0), self.draws, delta)


def draw(shares: np.ndarray, most: int, seed: int) -> BlockSample:
    """Choose up to `most` blocks of shares [B]: surely the largest, and others by their shares."""
    sure, draws = np.zeros(len(shares), bool), most
    while draws:
        rest = np.where(sure, 0, shares)
        taken = (rest > 0) & (rest >= rest.sum() / draws * (1 - ROUNDING))
        if not taken.any():
            break
        sure, draws = sure | taken, draws - int(taken.sum())
    reached = np.where(sure, 0, shares).cumsum()
    parts = (np.arange(draws) + [uniform(seed + i) for i in range(draws)]) / max(draws, 1)
    targets = reached[-1] * np.minimum(parts, 1 - ROUNDING)
    drawn = np.searchsorted(reached, targets, side="right") if reached[-1] else []
    times = np.bincount(np.array(drawn, int), minlength=len(shares))
    return BlockSample(shares, sure, times, draws)


def mixed(key: int) -> int:
    """Return 64 bits by splitmix64."""
    key = key + 0x9E3779B97F4A7C15 & 2**64 - 1
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    key = (key ^ key >> 27) * 0x94D049BB133111EB & 2**64 - 1
    return key ^ key >> 31


def uniform(key: int) -> float:
    """Return a number in [0, 1) that follows from a key."""
    return (mixed(key & 2**64 - 1) >> 11) * 2.0**-53


def seed_of(place: int, position: int) -> int:
    """Return the seed of a token's draws in a key/value head of a layer, `place` among all."""
    return mixed(mixed(place) + position & 2**64 - 1)
