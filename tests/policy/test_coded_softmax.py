"""Softmax by codes over what a policy leaves: the sum of values is that of the rows that are seen.

A score that is nearer to a border than rounding reaches may get the code on either side: heads that
have such a score are left out of comparisons, and few are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_policy_laws import (
    Make,
    a_batch_equals_its_requests,
    a_chain_equals_its_tokens,
    a_fork_goes_on_alike,
    runners,
    what_does_not_evict_loses_nothing,
)

import policy_models
from caches import as_multiplied, held
from oracle import max_error
from pairs import pairwise
from rows import SCALE, Rows
from suffice import native
from suffice.attention.calibration import Calibration, LayerInputs
from suffice.attention.exact import Exact
from suffice.attention.exaq import EXAQ
from suffice.attention.exaq_km import levels_of
from suffice.attention.levels import Levels
from suffice.attention.rule import coded_rule
from suffice.engine.runner import Runner
from suffice.policy import POLICIES
from suffice.policy.full import Full
from suffice.policy.quest import Quest
from suffice.policy.streaming import Streaming

__all__ = ["runners"]  # a fixture

TOLERANCE = 2e-5
MARGIN = 1e-5
LEVELS = {
    "exaq 2": EXAQ(2).layer_levels(1.5, -30.0),
    "exaq 3 flush": EXAQ(3, tail="flush").layer_levels(1.5, -30.0),
    "exaq_km 2": levels_of((0.02, 0.1, 0.4, 0.9)),
}
pytestmark = pytest.mark.usefixtures("one_thread")
each_level = pytest.mark.parametrize("name", LEVELS)


class Codes:
    """As a technique: exact attention by codes."""

    def __init__(self, levels: Levels, group: int) -> None:
        self._levels = [levels] * group

    def rule(self) -> Any:
        return coded_rule(None, self._levels)


def compare(
    levels: Levels, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray
) -> list[int | None]:
    """Hold an output [H, D] against the reference over the rows k, v [G, S, D] that are seen.

    Return how many values each key head must have read, None where a score is near a border.
    """
    group = len(q) // len(k)
    q, k, v = (each.astype(np.float64) for each in (q[:, None], k, v))
    found = Exact().reference(q, k, v, scale=SCALE, levels=[levels] * len(q))
    scores = SCALE * q @ np.repeat(k, group, 0).swapaxes(1, 2)
    x = scores - scores.max(-1, keepdims=True)
    sure = np.abs(x[..., None] - np.array(levels.borders)).min((1, 2, 3)) > MARGIN
    assert max_error(out[sure], found.output[sure, 0]) < TOLERANCE
    read = found.values[0].sum(-1).tolist()
    by_group = sure.reshape(-1, group).all(-1)
    return [count if own else None for count, own in zip(read, by_group, strict=True)]


def reads_match(reads: list[Any], wanted: list[int | None], summed: int) -> int:
    """Require that values of `wanted` + `summed` rows were read; return by how many heads."""
    sure = [(own.value_rows, count) for own, count in zip(reads, wanted, strict=True) if count]
    assert all(found == count + summed for found, count in sure)
    return len(sure)


@pytest.mark.parametrize(
    ("name", "budget", "sinks", "each_isa"),
    [
        (name, *sizes, isa)
        for name, sizes, isa in pairwise(LEVELS, [(40, 4), (21, 0), (64, 20)], native.isas())
    ],
    indirect=["each_isa"],
)
def test_streaming(name: str, budget: int, sinks: int, each_isa: str) -> None:
    """A row is read for the sum when it comes and when it goes, and all once they have moved."""
    levels, policy, rows = LEVELS[name], Streaming(budget=budget, sinks=sinks), Rows(400)
    cache, compared, removed = rows.cache(policy), 0, 0
    codes, recent = Codes(levels, rows.group), budget - sinks
    for token in range(400):
        held = cache.held(0)
        out, reads = rows.step(policy, cache, token, codes)
        seen = policy.seen(token, budget)
        wanted = compare(levels, rows.q[:, token], rows.k[:, seen], rows.v[:, seen], out)
        moved = int(cache.native.removed(0)) - removed
        removed += moved
        hidden = token - removed - recent + 1 - sinks
        summed = held - moved + 1 + hidden if moved else 1 + (hidden > 0)
        compared += reads_match(reads, wanted, summed if levels.weights[0] else 0)
        assert reads[0].dense_rows == token + 1
    assert compared > 700 and removed > 200


@pytest.mark.parametrize(
    ("name", "prompt", "budget", "each_isa"),
    pairwise(LEVELS, [0, 150], [17, 40], native.isas()),
    indirect=["each_isa"],
)
def test_h2o_sums_the_weights_of_codes(name: str, prompt: int, budget: int, each_isa: str) -> None:
    levels, policy, rows = LEVELS[name], POLICIES.build(f"h2o:budget={budget}"), Rows(300)
    cache, codes = rows.cache(policy), Codes(levels, rows.group)
    models = [policy_models.HeavyHitters(budget) for _ in rows.k]
    if prompt:
        rows.prompt(policy, cache, prompt)
        keys = rows.k[:, :prompt]
        queries = policy_models.heads_of(rows.q[:, :prompt], keys)
        for own, key, model in zip(queries, keys, models, strict=True):
            model.start(sum(policy_models.softmax(each, key, SCALE).sum(0) for each in own))
    compared = 0
    for token in range(prompt, 300):
        seen = [[*model.tokens(), token] for model in models]
        k, v = (
            np.stack([own[g, rows_seen] for g, rows_seen in enumerate(seen)])
            for own in (rows.k, rows.v)
        )
        out, _ = rows.step(policy, cache, token, codes)
        wanted = compare(levels, rows.q[:, token], k, v, out)
        if None in wanted:
            break  # what is kept from now on may differ
        compared += 1
        for g, model in enumerate(models):
            heads = rows.q[g * rows.group : (g + 1) * rows.group, token].astype(np.float64)
            scores = SCALE * heads @ k[g].astype(np.float64).T
            weights = levels.weigh(scores - scores.max(-1, keepdims=True))
            shares = (weights / weights.sum(-1, keepdims=True)).sum(0)
            model.step(token, dict(zip(seen[g], shares.tolist(), strict=True)))
    assert compared > 60


@each_level
@pytest.mark.parametrize("setting", ["snapkv:budget=100,window=8", "pyramidkv:budget=130"])
def test_what_is_evicted_leaves_the_sum(name: str, setting: str, each_isa: str) -> None:
    levels, rows = LEVELS[name], Rows(300)
    policy, codes = POLICIES.build(setting), Codes(levels, rows.group)
    cache, known = rows.cache(policy), rows.cache(Full())
    rows.prompt(policy, cache, 280)
    rows.prompt(Full(), known, 280)
    rows.step(Full(), known, 280, codes)  # its sum is known when it evicts
    known.evict(0, np.tile(np.arange(0, 281, 3), (2, 1)))
    compared = 0
    for each, own, first in ((cache, policy, 280), (known, Full(), 281)):
        before = each.held(0)
        assert before < 280
        for token in range(first, 300):
            out, reads = rows.step(own, each, token, codes)
            wanted = compare(levels, rows.q[:, token], *held(each), out)
            summed = 1 + before * (token == first)
            compared += reads_match(reads, wanted, summed if levels.weights[0] else 0)
    assert compared > 60


@pytest.mark.parametrize(
    ("name", "dtype", "budget", "each_isa"),
    pairwise(LEVELS, ["float32", "bfloat16"], [64, 4096], native.isas()),
    indirect=["each_isa"],
)
def test_quest(name: str, dtype: str, budget: int, each_isa: str) -> None:
    """All values of the blocks that were chosen are read, unless these are all blocks."""
    levels, policy = LEVELS[name], Quest(budget=budget, dense_layers=0)
    rows = Rows(360, seed=3)
    cache, compared = rows.cache(policy, dtype), 0
    codes = Codes(levels, rows.group)
    rows.prompt(policy, cache, 300)
    for token in range(300, 360):
        out, reads = rows.step(policy, cache, token, codes)
        k, v = held(cache)
        chosen = []
        for group in range(2):
            own = rows.q[group * rows.group : (group + 1) * rows.group, token]
            blocks = policy.select(own, k[group], budget // 16)
            chosen.append([r for b in blocks for r in range(16 * b, min(16 * b + 16, token + 1))])
        picked = [np.stack([own[g, chosen[g]] for g in range(2)]) for own in (k, v)]
        q = as_multiplied(rows.q[:, token], cache, SCALE)
        wanted = compare(levels, q, *picked, out)
        read = len(chosen[0])
        for own in reads:
            assert (own.key_rows, own.dense_rows) == (read, token + 1)
            assert own.sketch_bytes > 0
        tail = levels.weights[0] > 0
        if tail and budget == 64:
            wanted = [None if count is None else read for count in wanted]
        summed = 1 + 300 * (token == 300) if tail and budget > 64 else 0
        compared += reads_match(reads, wanted, summed)
    assert compared > 100


def calibration(runner: Runner) -> Calibration:
    model = runner.decoder.config
    layers = tuple(LayerInputs(1.0, -20.0) for _ in model.layers)
    return Calibration("none", "tiny", "", model.heads, layers, {}, {})


@pytest.fixture
def coded(runners: Callable[[str], Make]) -> Callable[[str], Make]:
    """Runners of a tiny model by its variant and policy, that decode by codes."""

    def of(variant: str) -> Make:
        def make(policy: Any) -> Runner:
            exact = runners(variant)(policy)
            config = dataclasses.replace(
                exact.config, softmax=EXAQ(2), calibration=calibration(exact)
            )
            return Runner(config, exact.decoder)

        return make

    return of


LAWS = (
    a_batch_equals_its_requests,
    a_chain_equals_its_tokens,
    a_fork_goes_on_alike,
    what_does_not_evict_loses_nothing,
)


@pytest.mark.parametrize(
    ("law", "setting", "variant"),
    pairwise(LAWS, ["full", *policy_models.SETTINGS], ["llama", "gemma3"]),
)
def test_law(law: Any, setting: str, variant: str, coded: Any) -> None:
    law(POLICIES.build(setting), coded(variant))


def test_a_row_that_stays_in_the_sum_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison bites: rows that the policy has evicted are added to what is expected."""
    genuine = Streaming.seen

    def late(self: Streaming, token: int, budget: int) -> list[int]:
        return genuine(self, token, budget + 1)

    monkeypatch.setattr(Streaming, "seen", late)
    with pytest.raises(AssertionError):
        test_streaming("exaq 2", 40, 4, "")
