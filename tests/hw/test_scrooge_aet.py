"""Early termination: the paper's example, exact arithmetic, waves, groups, and the native twin."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from suffice.attention.aet import AET
from suffice.errors import InputError
from suffice_hw import _simulator
from suffice_hw.scrooge.aet import GROUP_STOPS, MASSES, Aet, Rule, enough
from suffice_hw.scrooge.exponent import exp_fp16


def test_figure_3() -> None:
    share = Fraction(9, 10)
    known = [Fraction(6, 10), Fraction(3, 10), Fraction(1, 10)]
    assert not enough(sum(known), max(known), 3, 6, share), "0.625 of the estimated whole"
    known += [Fraction(5, 100), Fraction(3, 100)]
    assert enough(sum(known), max(known), 5, 6, share), "0.9 of it: equality stops"
    assert not enough(sum(known), max(known), 5, 6, share + Fraction(1, 10**9))


def test_the_condition_has_a_closed_form() -> None:
    # with p = Max / Sum: stop if (1 - p) (L - n) / (n - 1) <= 1 / thr - 1
    draw = random.Random(1)
    outcomes = set()
    for _ in range(2_000):
        count, rest = draw.randint(2, 30), draw.randint(0, 60)
        weights = [Fraction(draw.randint(1, 1000)) for _ in range(count)]
        share = Fraction(draw.randint(1, 100), 100)
        p = max(weights) / sum(weights)
        closed = (1 - p) * rest / (count - 1) <= 1 / share - 1
        assert enough(sum(weights), max(weights), count, count + rest, share) == closed
        outcomes.add(closed)
    assert outcomes == {True, False}


def weights_of(length: int, heads: int, seed: int) -> Any:
    logits = np.random.default_rng(seed).normal(0, 2.0, (heads, length)).astype(np.float32)
    logits[:, 0] += 6
    return logits


@pytest.mark.parametrize("length", [1, 2, 72, 73])
def test_short_sequences_are_known_as_a_whole(length: int) -> None:
    aet = Aet(Rule(key_share=0.01))
    for step in range(1, length + 1):
        decision = aet.step(np.exp(weights_of(step, 1, step)).tolist())
    assert sorted(decision.keys) == sorted(decision.values) == list(range(length))
    assert decision.waves == 0


@pytest.mark.parametrize("wave", [8, 16])
def test_a_wave_reads_at_most_one_wave_less_one_too_many(wave: int) -> None:
    # where the condition, once met, stays so until the next look: it can fail again
    lasting = 0
    for seed in range(20):
        weights = np.exp(weights_of(300, 1, seed))
        one, many = (Aet(Rule(wave=w, globals=4)).step(weights.tolist()) for w in (1, wave))
        assert one.keys == many.keys[: len(one.keys)]
        known, first = weights[0, many.keys].cumsum(), len(one.keys)
        greatest = weights[0, one.keys[: one.important]].max()
        met = [
            enough(known[n - 1], greatest, n, 300, 0.9)
            for n in range(first, min(first + wave, len(many.keys) + 1))
        ]
        assert met[0] or first == 300
        if all(met):
            lasting += 1
            assert len(many.keys) <= first + wave - 1
    assert lasting >= 5


def native_steps(rule: Rule, logits: Any, lengths: list[int]) -> tuple[Any, list[Any]]:
    totals = np.zeros((3, logits.shape[1]), np.int32)
    return totals, _simulator.traced_steps(rule.native, logits, lengths, totals)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(
    "rule",
    [
        Rule(wave=8),
        Rule(wave=16, key_share=0.7, value_share=0.05),
        Rule(wave=5, filter_important=True, value_share=0.02, running_max=True),
        Rule(wave=1, masses="weights", globals=5, locals=2, sinks=0),
        Rule(wave=4, globals=0, group_stop="any"),
        Rule(wave=4, globals=6, group_stop="masked", value_share=0.1),
        Rule(key_share=2, value_share=0),
    ],
    ids=str,
)
def test_the_native_twin_decides_alike(rule: Rule, heads: int) -> None:
    steps = 150
    logits = np.zeros((heads, steps, steps), np.float32)
    for step in range(steps):
        logits[:, step, : step + 1] = weights_of(step + 1, heads, step)
    totals, decisions = native_steps(rule, logits, list(range(1, steps + 1)))
    aet = Aet(rule)
    for step, native in enumerate(decisions):
        ours = aet.step(np.exp(logits[:, step, : step + 1].astype(np.float64)).tolist())
        assert (native.keys, native.values) == (ours.keys, ours.values), step
        assert (native.important, native.waves) == (ours.important, ours.waves)
        assert totals[:, step].tolist() == [len(ours.keys), len(ours.values), ours.waves]
    if rule.key_share > 1:
        assert totals[0].tolist() == totals[1].tolist() == list(range(1, steps + 1))
    elif rule.globals < 64:
        assert totals[0].sum() < steps * (steps + 1) // 2


@pytest.mark.parametrize("heads", [1, 3])
def test_the_engine_reads_the_same_rows_token_by_token(heads: int) -> None:
    """So perplexities of `aet:block=1` belong to the accelerator's traffic and speed."""
    rule = Rule(wave=1, key_share=0.8, value_share=0.05, globals=6, locals=4)
    engine = AET(keys=0.8, values=0.05, block=1, globals=6, locals=4)
    accelerator, states, read = Aet(rule), [engine.new_state()], 0
    for length in range(1, 81):
        logits = weights_of(length, heads, length).astype(np.float64)
        ours = accelerator.step(np.exp(logits).tolist())
        k = np.ascontiguousarray(logits.T)[None]  # [1, S, heads]: a head's query picks its own
        found = engine.reference(
            np.eye(heads)[:, None], k, np.zeros_like(k), scale=1.0, states=states
        )
        assert sorted(ours.keys) == np.flatnonzero(found.keys[0, 0]).tolist(), length
        assert sorted(ours.values) == np.flatnonzero(found.values[0, 0]).tolist(), length
        read += len(ours.keys)
    assert read < 0.9 * 80 * 81 / 2


def test_a_masked_head_wants_fewer_values() -> None:
    logits = np.stack([weights_of(200, 1, 3)[0], np.zeros(200, np.float32)])[:, None, :]
    logits = np.repeat(logits, 200, 1)
    sizes = {
        stop: native_steps(Rule(wave=4, globals=4, group_stop=stop), logits, [200])[0][:2, 199]
        for stop in GROUP_STOPS
    }
    assert sizes["any"][0] < sizes["all"][0] == sizes["masked"][0]


def test_the_value_reduction_has_a_bound() -> None:
    # the 73 important rows are always read, so no logits make it more than 7.28 over 1..1024
    tokens = 1024
    totals = np.zeros((3, tokens), np.int32)
    source = _simulator.Synthetic(30.0, 0.1, 0.1, 0.0, 8.0, 1)
    _simulator.synthetic_steps(Rule(wave=16).native, 1, source, 0, [], totals)
    reduction = tokens * (tokens + 1) / 2 / totals[1].sum()
    assert reduction == pytest.approx(524800 / 72124, abs=1e-9)


def test_the_exponent_unit_is_within_a_thousandth() -> None:
    x = np.arange(0, 1 << 16, dtype=np.uint16).view(np.float16)  # all there are
    x = x[(x >= -9.7) & (x <= 11)]
    exact = np.exp(x.astype(np.float64))
    error = np.abs(exp_fp16(x).astype(np.float64) - exact) / exact
    assert len(x) > 30_000
    assert error.max() < 1e-3
    r = np.array([-2.0])
    series = sum(r**n / math.factorial(n) for n in range(6))
    assert abs(series / np.exp(r) - 1) > 0.5, "without range reduction it is half off"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"key_share": 0}, "Rule: key_share=0: must be in [0.01, 2]"),
        ({"value_share": 1.5}, "Rule: value_share=1.5: must be in [0, 1]"),
        ({"locals": 0}, "Rule: locals=0: must be in [1, 4096]"),
        ({"wave": 8.5}, "Rule: wave=8.5: must be a whole number"),
        ({"masses": "score"}, f"unknown masses of Rule 'score'. Did you mean '{MASSES[0]}'?"),
        ({"group_stop": "some"}, "unknown group_stop of Rule 'some'."),
        ({"running_max": 1}, "Rule: running_max=1: must be true or false"),
    ],
)
def test_bad_rules_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        Rule(**values)
    assert str(raised.value).startswith(message)
