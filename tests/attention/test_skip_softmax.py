"""BLASST: which tiles are left out, by the reference and by native code alike.

Keys are made for scores: query head r looks at element r of a key alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from caches import cache_of, held
from oracle import max_error
from rows import SCALE, Rows
from suffice.attention.skip_softmax import SkipSoftmax
from suffice.backends.cpu.attention import attend
from suffice.errors import InputError
from suffice.policy import POLICIES
from suffice.policy.quest import Quest

SIZE = 64


def read(
    technique: SkipSoftmax, scores: np.ndarray, window: int | None = None, dtype: str = "float32"
) -> list[int]:
    """Return the tiles of 16 rows whose values are read for heads' scores [R, S] of a token.

    The values of all other blocks are not numbers for native code, whose output would show them.
    """
    heads, rows = scores.shape
    q, k = np.zeros((heads, 1, SIZE), np.float32), np.zeros((1, rows, SIZE), np.float32)
    q[range(heads), 0, range(heads)], k[0, :, :heads] = 1, scores.T
    visible = (np.arange(rows) >= rows - (window or rows))[None]
    v = np.random.default_rng(0).standard_normal(k.shape).astype(np.float32)
    expected = technique.reference(q, k, v, scale=1.0, visible=visible)
    kept = expected.values[0, 0]
    weights = np.where(kept, np.exp(scores - scores[:, kept].max(-1, keepdims=True)), 0)
    mean = weights[:, kept] @ v[0, kept] / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(expected.output[:, 0], mean, rtol=1e-4, atol=1e-5)
    v[:, ~np.repeat(kept.reshape(-1, 16).any(-1), 16)] = np.nan
    cache = cache_of(k, v, dtype)
    found, (reads,) = attend(technique.rule(), q, cache, 0, scale=1.0, window=window)
    np.testing.assert_allclose(found[:, 0], mean, rtol=1e-4, atol=1e-5)
    hidden = (rows - (window or rows)) % 16  # of the first block, which counts whole
    assert reads.key_rows == visible.sum() + hidden
    assert reads.value_rows == kept.sum() + hidden * kept[visible[0]][0]
    return sorted({row // 16 for row in np.flatnonzero(kept).tolist()})


def of_tiles(*largest: float) -> np.ndarray:
    """Return scores of one head [1, S] whose largest in each tile of 16 rows are given."""
    scores = np.repeat(np.array(largest, np.float32), 16) - 1
    scores[5::16] += 1
    return scores[None]


def test_a_light_tile_is_left_out_whole() -> None:
    """e^-4.7 is below 0.96 / 96 = 0.01, e^-4.5 above."""
    technique = SkipSoftmax(factor=0.96, block=16)
    assert read(technique, of_tiles(0, -4.7, -4.5, 0, -9, 0)) == [0, 2, 3, 5]


@pytest.mark.parametrize("block", [16, 32, 64])
def test_a_tile_has_the_rows_of_a_block(block: int) -> None:
    """A heavy row keeps its tile."""
    scores = of_tiles(0, *[-9] * 4, 0, *[-9] * 6)
    kept = {*range(block // 16), *range(80 // block * block // 16, (80 // block + 1) * block // 16)}
    assert read(SkipSoftmax(factor=1, block=block), scores) == sorted(kept)


def test_tiles_come_oldest_first() -> None:
    """A maximum that comes late leaves nothing out before it."""
    technique = SkipSoftmax(factor=1, block=16)
    assert read(technique, of_tiles(9, 0, 1, 2, 3)) == [0]
    assert read(technique, of_tiles(0, 1, 2, 3, 9)) == [0, 1, 2, 3, 4]
    assert read(technique, of_tiles(0, 1, 9, 3, 0)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("split", "kept"),
    [(0, [0]), (32, [0, 2, 3, 4]), (48, [0, 3, 4]), (64, [0, 4]), (80, [0]), (16, [0, 1, 2, 3, 4])],
)
def test_a_split_has_a_maximum_of_its_own(split: int, kept: list[int]) -> None:
    technique = SkipSoftmax(factor=1, block=16, split=split)
    assert read(technique, of_tiles(9, 0, 0, 0, 0)) == kept


def test_within_a_later_split_light_tiles_are_left_out() -> None:
    technique = SkipSoftmax(factor=1, block=16, split=48)
    assert read(technique, of_tiles(9, 0, 0, 0, -9, 0, -9, 2, 2)) == [0, 3, 5, 6, 7, 8]


def test_heads_that_share_keys_leave_a_tile_out_together() -> None:
    technique = SkipSoftmax(factor=1, block=16)
    scores = np.concatenate(
        [of_tiles(0, -9, -9, 0, -9), of_tiles(0, -9, 0, -9, -9), of_tiles(0, -9, -9, -9, -8)]
    )
    assert read(technique, scores) == [0, 2, 3]
    assert [read(technique, own[None]) for own in scores] == [[0, 3], [0, 2], [0]]


def test_the_threshold_follows_the_number_of_keys() -> None:
    """e^-3 = 0.0498 is below 4 / 64, and above 4 / 96."""
    technique, scores = SkipSoftmax(factor=4, block=16), of_tiles(0, -3, -3, -3)
    assert read(technique, scores) == [0]
    assert read(technique, np.concatenate([scores, scores[:, :32]], 1)) == [0, 1, 2, 3, 4, 5]


def test_a_window_counts_its_own_keys() -> None:
    """It begins within a tile, whose hidden maximum is not one."""
    technique, scores = SkipSoftmax(factor=4, block=32), of_tiles(9, 9, 9, 0, -3, -3, 0, 0)
    assert read(technique, scores) == [0, 1, 2, 3]
    assert read(technique, scores, window=79) == [3, 6, 7]
    assert read(technique, scores, window=81) == [2, 3]


def test_of_a_text_shorter_than_the_factor_nothing_is_left_out() -> None:
    scores = of_tiles(0, -3, -9, -0.1)
    assert read(SkipSoftmax(factor=65, block=16), scores) == [0, 1, 2, 3]
    assert read(SkipSoftmax(factor=64, block=16), scores) == [0]
    assert read(SkipSoftmax(factor=0, block=16), scores) == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "kmeans4"])
def test_a_larger_factor_reads_fewer_values(dtype: str) -> None:
    random = np.random.default_rng(0)
    keys, values = random.standard_normal((2, 1, 1000, SIZE)).astype(np.float32)
    q = 2 * random.standard_normal((2, 1, SIZE)).astype(np.float32)
    cache, counts = cache_of(keys, values, dtype), []
    for factor in (0, 1, 10, 30, 100, 300, 700, 1000):
        (reads,) = attend(SkipSoftmax(factor, 16).rule(), q, cache, 0, scale=0.3)[1]
        assert reads.key_rows == 1000
        counts.append(reads.value_rows)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 1000 and counts[-1] < 200 and len(set(counts)) > 5


@pytest.mark.parametrize(
    "setting",
    [
        "snapkv:ratio=0.8,window=8",
        "snapkv:rank_only=true,window=8",
        "streaming:budget=150,sinks=20",
    ],
)
@pytest.mark.parametrize("split", [0, 64])
def test_over_what_a_policy_leaves_tiles_come_oldest_first(setting: str, split: int) -> None:
    """Whatever order the policy gives the blocks."""
    policy, rows = POLICIES.build(setting), Rows(300)
    cache = rows.cache(policy)
    rows.prompt(policy, cache, 280)
    technique, left_out = SkipSoftmax(factor=120, block=16, split=split), 0
    for token in range(280, 300):
        out, reads = rows.step(policy, cache, token, technique)
        k, v = (each.astype(np.float64) for each in held(cache))
        hidden = np.zeros((1, k.shape[1]), bool)
        if "streaming" in setting:
            hidden[0, 20 : k.shape[1] - 130] = True
        q = rows.q[:, token : token + 1].astype(np.float64)
        expected = technique.reference(q, k, v, scale=SCALE, visible=~hidden)
        assert max_error(out, expected.output[:, 0]) < 2e-5
        for group in range(2):
            kept = expected.values[0, group]
            left_out += int((~kept & ~hidden[0]).sum())
            more = reads[group].value_rows - int(kept.sum())
            assert 0 <= more < 32 if "streaming" in setting else more == 0  # parts of two blocks
    assert left_out > 500


def test_of_the_blocks_that_quest_selects_tiles_come_oldest_first() -> None:
    policy, rows = Quest(budget=96, dense_layers=0), Rows(400, seed=3)
    cache = rows.cache(policy)
    rows.prompt(policy, cache, 300)
    technique, left_out = SkipSoftmax(factor=150, block=32), 0
    for token in range(300, 400):
        out, reads = rows.step(policy, cache, token, technique)
        k, v = (each.astype(np.float64) for each in held(cache))
        for group in range(2):
            own = slice(group * rows.group, (group + 1) * rows.group)
            chosen = policy.select(rows.q[own, token], k[group].astype(np.float32), 6)
            visible = np.isin(np.arange(token + 1) // 16, chosen)[None]
            # A token sees all rows, whatever is selected of them.
            equal = dataclasses.replace(technique, factor=150 * visible.sum() / (token + 1))
            q = rows.q[own, token : token + 1].astype(np.float64)
            one = slice(group, group + 1)
            expected = equal.reference(q, k[one], v[one], scale=SCALE, visible=visible)
            assert max_error(out[own], expected.output[:, 0]) < 2e-5
            assert reads[group].value_rows == expected.values.sum()
            left_out += visible.sum() - expected.values.sum()
    assert left_out > 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": -1.0}, "skip_softmax: factor=-1.0: must be a finite number of at least 0"),
        ({"factor": float("inf")}, "skip_softmax: factor=inf: must be a finite number of at"),
        ({"factor": float("nan")}, "skip_softmax: factor=nan: must be a finite number of at"),
        ({"block": 48}, "skip_softmax: block=48: must be 16, 32 or 64"),
        ({"split": 96}, "skip_softmax: split=96: must be 0 or a multiple of block=64"),
        ({"split": -64}, "skip_softmax: split=-64: must be 0 or a multiple of block=64"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        SkipSoftmax(**options)
    assert str(error.value).startswith(message)
