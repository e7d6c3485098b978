"""Keys made to be beyond the bounds of `tiers`: certain ones hold, others but for their share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from caches import cache_of
from suffice.attention.planes import LEVEL_UNIT, LEVELS, rotated, split
from suffice.attention.tiers import Tiers
from suffice.backends.cpu.attention import attend
from tiered import GROUPS, REP, SCALE, SIZE, like_a_model_s, queries

ROWS, TOKENS, HEADS = 2048, 24, GROUPS * REP
UNIT, REST = 0.05, 1.0  # of a rotated key's levels, and what is added to these
Rows = tuple[np.ndarray, np.ndarray]  # keys [G, S, D] and queries [H, T, D]


def outlier_channel(seed: int) -> Rows:
    keys = like_a_model_s(ROWS, seed)[0]
    keys[..., 7] *= 40
    keys[:, 100, 9] = 300
    return keys, queries(TOKENS, seed, 0.1)


def duplicates(seed: int) -> Rows:
    keys = like_a_model_s(ROWS, seed)[0]
    keys[:, 64:] = keys[:, 64:65]
    return keys, queries(TOKENS, seed)


def far_needle(seed: int) -> Rows:
    keys = 0.1 * like_a_model_s(ROWS, seed)[0]
    keys[:, 33] = 3
    return keys, queries(TOKENS, seed)


def two_keys(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return two rotated keys [2, D] with one base, and signs [D]: along them, and across, is what
    the base lacks of the first and of the second, while the base itself has nothing along them.
    """
    borders = (LEVELS[1:].astype(np.float64) + LEVELS[:-1]) / 2
    while True:
        levels = LEVELS[np.searchsorted(borders, LEVEL_UNIT * random.standard_normal(SIZE))]
        signs = random.choice([-1.0, 1.0], (4000, SIZE))
        along = signs[np.abs(signs @ levels).argmin()]
        across = along * random.permuted(np.repeat([-1.0, 1.0], SIZE // 2))
        keys = UNIT * (levels + REST * np.stack([along, across]))
        if (split(rotated(keys), keys=True).levels == levels).all():
            return keys, along


def hidden(seed: int) -> Rows:
    """Keys look all alike, but queries have scores with those of 4 in 128 blocks that are as far
    off as they may be.
    """
    random = np.random.default_rng(seed)
    two, along = two_keys(random)
    blocks = random.permuted(np.tile(np.arange(ROWS // 16) >= 4, (GROUPS, 1)), axis=-1)
    keys = rotated(two)[np.repeat(blocks, 16, 1).astype(int)].astype(np.float32)
    most = 0.5 / (SCALE * UNIT * REST * SIZE)  # scores are off by 0.5
    q = np.tile(most * rotated(along), (HEADS, TOKENS, 1)).astype(np.float32)
    return keys, np.ascontiguousarray(q)


def beyond(
    technique: Tiers, made: Callable[[int], Rows], seed: int, dtype: str, tokens: int = TOKENS
) -> np.ndarray:
    """Return whether each softmax is beyond its bound [T, H]; no output may be unless it is."""
    keys, q = made(seed)
    q = np.ascontiguousarray(q[:, :tokens])
    values = like_a_model_s(ROWS, seed)[1]
    cache = cache_of(keys, values, dtype, rounding=None, bases=True, limit=ROWS)
    found = np.full((5, tokens, HEADS), np.nan, np.float32)
    attend(technique.rule(), q, cache, 0, scale=SCALE, audit=found)
    missing, _, bound, shift, shift_bound = found.astype(np.float64)
    wrong: np.ndarray = missing > bound + 1e-5
    assert missing.max() > 1e-4 and (bound <= 1).all()
    assert not (shift > shift_bound + 1e-5)[~wrong].any()
    return wrong


@pytest.mark.parametrize("dtype", ["planes", "float32"])
@pytest.mark.parametrize("made", [outlier_channel, duplicates, far_needle, hidden])
def test_no_softmax_is_beyond_a_certain_bound(made: Callable[[int], Rows], dtype: str) -> None:
    for seed in range(2):
        for eps, skip in ((1.0, 0.0), (0.3, 0.001)):
            assert not beyond(Tiers(eps, skip, bounded=True), made, seed, dtype, 8).any()


@pytest.mark.parametrize("dtype", ["planes", "float32"])
@pytest.mark.parametrize("made", [outlier_channel, duplicates, far_needle, hidden])
def test_few_are_beyond_a_bound_at_a_confidence(made: Callable[[int], Rows], dtype: str) -> None:
    """Heads of a group share their draws. What is hidden is not drawn, now and then."""
    delta, runs = 0.2, 6
    technique = Tiers(1.0, 0.0, sample=64, delta=delta)
    wrong = np.stack([beyond(technique, made, seed, dtype)[:, ::REP] for seed in range(runs)])
    allowed = delta + 4 * (delta * (1 - delta) / wrong.size) ** 0.5
    assert wrong.mean() <= allowed
    assert (wrong.mean() > delta / 10) == (made is hidden)
