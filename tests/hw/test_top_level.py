"""Scrooge's top level: gates against the model, the model against the algorithm of the paper.

Also tests top_level_parts.py, top_level_units.py, top_level_run.py and the exponent's gates.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="needs suffice[rtl]")

from amaranth.hdl import Fragment

from suffice.attention.aet import AET
from suffice_hw.cost.checks import SMALL_TOP_LEVEL
from suffice_hw.rtl import fp16_model, top_level_checks, top_level_model
from suffice_hw.rtl.lane_units import exponent_of
from suffice_hw.rtl.simulate import module_of
from suffice_hw.rtl.top_level_checks import SMALL, head_of
from suffice_hw.rtl.top_level_cycles import Work, compared, timed, waves_of
from suffice_hw.rtl.top_level_model import Head, Outcome, computed
from suffice_hw.rtl.top_level_parts import control, parts
from suffice_hw.rtl.top_level_run import Job, run
from suffice_hw.rtl.top_level_units import Size
from suffice_hw.scrooge.aet import Aet, Decision, Rule
from suffice_hw.scrooge.design import Design, model
from suffice_hw.scrooge.exponent import exp_fp16
from suffice_hw.scrooge.logits import Synthetic

WIDE = Size(16, 64, 4)


def decided(rule: Rule, length: int, seed: int, spread: float = 2.0) -> tuple[Any, Decision]:
    """Return the logits of the last of `length` steps, and what Algorithm 1 reads of them."""
    source, aet = np.random.default_rng(seed), Aet(rule)
    for step in range(1, length + 1):
        logits = spread * source.standard_normal(step)
        logits[0] += 2
        decision = aet.step([np.exp(logits).tolist()])
    return logits, decision


def head_for(logits: Any, decision: Decision, size: int, rule: Rule) -> Head:
    """Return the head of these logits; rows that were not read come last, newest first."""
    rest = [row for row in reversed(range(len(logits))) if row not in set(decision.keys)]
    order = [*decision.keys, *rest]
    shares = (rule.key_share, rule.value_share)
    return head_of(logits, order, decision.important, size, shares)


def work_of(size: Size, head: Head, outcome: Outcome) -> Work:
    lanes = head.parts(size)
    others = outcome.known - head.important
    waves, first = waves_of(head.important, others, size.lanes // lanes)
    return Work(lanes, waves, first, len(outcome.kept))


SETTINGS = [  # head size, tokens, cycles between waves, shares: 1, 2 and 4 lanes per token
    (4, 30, 1, 0.9, 0.1),
    (6, 40, 4, 0.8, 0.2),
    (16, 26, 4, 0.9, 0.05),
    (8, 24, 3, 1.5, 0.0),  # never stops, keeps all
]


@dataclasses.dataclass
class Ran:
    """Heads through the gates, one after the other, the last one by `hw validate`'s check."""

    jobs: list[Job]
    decisions: list[Decision]
    found: list[Any]
    checks: list[Any]


@pytest.fixture(scope="module")
def ran() -> Ran:
    """One simulation for all heads: making it takes longer than running it."""
    made = Ran([], [], [], [])
    for head_size, length, gap, keys, values in SETTINGS:
        lanes = 1 << (-(-head_size // SMALL.width) - 1).bit_length()
        rule = Rule(keys, values, globals=4, locals=3, wave=SMALL.lanes // lanes)
        logits, decision = decided(rule, length, seed=length)
        times = [1 + gap * i for i in range(length)]
        made.jobs.append(Job(head_for(logits, decision, head_size, rule), times, times))
        made.decisions.append(decision)

    def run_all(size: Size, jobs: list[Job]) -> list[Any]:
        assert size == SMALL
        made.found = run(size, [*made.jobs, *jobs])
        return made.found[len(made.jobs) :]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_level_checks, "run", run_all)
        made.checks = top_level_checks.gates()
    return made


def test_gates_are_the_model_and_the_algorithm(ran: Ran) -> None:
    """Heads of different sizes, one after the other: nothing of one is left for the next."""
    assert len(ran.found) == len(ran.jobs) + 1
    for job, decision, (outcome, when) in zip(ran.jobs, ran.decisions, ran.found, strict=False):
        expected = computed(SMALL, job.head)
        assert outcome.output.tobytes() == expected.output.tobytes(), "bit for bit"
        assert (outcome.known, outcome.kept) == (expected.known, expected.kept)
        assert when == timed(SMALL, work_of(SMALL, job.head, expected), job.keys, job.values)
        assert outcome.known == len(decision.keys)
        assert [decision.keys[place] for place in outcome.kept] == decision.values
        if job.head.key_share < 1:
            assert outcome.known < len(job.head.keys) and len(outcome.kept) < outcome.known


def test_a_wave_of_one_token_is_the_engines_technique() -> None:
    """4 lanes of 4 compute heads of 16 token by token, as `aet` with block=1."""
    source, length = np.random.default_rng(3), 40
    aet = AET(keys=0.9, values=0.05, block=1, sinks=1, globals=4, locals=3)
    q = 1.5 * source.standard_normal((1, length, 16))
    k, v = source.standard_normal((2, 1, length, 16))
    k[0, 0] = q.mean((0, 1)) * 8
    sees = np.tril(np.ones((length, length), bool))
    states = [aet.new_state()]
    aet.reference(
        q[:, :-1], k, v, scale=0.25, visible=sees[:-1], states=states
    )  # the state before the last token
    found = aet.reference(q[:, -1:], k, v, scale=0.25, visible=sees[-1:], states=states)
    always = aet.always(states[0], length)
    order = [*always, *(row for row in reversed(range(length)) if row not in set(always))]
    halves = [x.astype(np.float16) for x in (q[0, -1], k[0, order], v[0, order])]
    outcome = computed(SMALL, Head(*halves, len(always), aet.keys, aet.values))
    read = {order[place] for place in range(outcome.known)}
    assert read == set(np.flatnonzero(found.keys[0, 0]))
    kept = {order[place] for place in outcome.kept}
    assert kept == set(np.flatnonzero(found.values[0, 0]))
    assert len(always) < len(read) < length and len(kept) < len(read)
    np.testing.assert_allclose(outcome.output, found.output[0, 0], atol=4e-3)


@pytest.mark.parametrize(("head_size", "wave"), [(64, 16), (80, 8), (128, 8)])
def test_fp16_reads_what_the_algorithm_reads(head_size: int, wave: int) -> None:
    rule = Rule(0.9, 0.01, globals=16, locals=8, wave=wave)
    differs = 0
    for seed in range(4):
        logits, decision = decided(rule, 150, seed)
        head = head_for(logits, decision, head_size, rule)
        outcome = computed(WIDE, head)
        assert abs(outcome.known - len(decision.keys)) <= wave
        differs += outcome.known != len(decision.keys)
        assert top_level_checks._error(head, outcome.known, outcome.kept, outcome.output) < 1e-2
    assert differs <= 1, "a threshold that is met to 1 part in 1000 may go either way"


def test_logits_beyond_the_exponents_range_do_not_matter() -> None:
    """e^30 is no FP16 number, but weights are relative to the largest important logit."""
    rule = Rule(0.9, 0.01, globals=4, locals=3, wave=4)
    logits, decision = decided(rule, 60, 5)
    head = head_for(logits, decision, 64, rule)
    size = Size(4, 64, 4)
    higher = head_for(logits + 30, decision, 64, rule)
    assert logits.max() + 30 > 11.1, "where FP16 ends"
    low, high = computed(size, head), computed(size, higher)
    assert low.known == high.known == len(decision.keys)
    np.testing.assert_allclose(low.output, high.output, atol=0.02)


def test_the_exponents_gates_are_numpys_arithmetic() -> None:
    """All numbers up to 16; results below the normal ones are 0 in the unit."""
    bits = np.arange(0x10000, dtype=np.uint16)
    x = bits.view(np.float16)
    size = np.abs(x.astype(np.float64))
    inside = (size < 16) & ((size >= 2.0**-14) | (size == 0))
    with np.errstate(over="ignore"):
        exact = exp_fp16(x[inside])
    exact[exact.astype(np.float64) < 2.0**-14] = 0
    ours = np.array([exponent_of(each) for each in bits[inside].tolist()], np.uint16)
    assert ours.tolist() == exact.view(np.uint16).tolist()
    normal = np.isfinite(exact) & (exact > 0)
    error = exact[normal].astype(np.float64) - np.exp(x[inside][normal].astype(np.float64))
    ulps = np.abs(error / np.spacing(exact[normal]).astype(np.float64))
    assert ulps.max() < 1.01
    assert exponent_of(0x4C00) == exponent_of(0x7C00) == fp16_model.INFINITY
    assert exponent_of(0xCC00) == exponent_of(0xFC00) == 0


def test_cycles_by_hand() -> None:
    """One token of one lane, 4 lanes of 4: its row enters in cycle 1."""
    when = timed(SMALL, Work(1, [1], 1, 1), [1], [5])
    logit = 1 + (1 + 2 + 0 + 1)  # products, two levels, none across lanes, scale
    weight = logit + (2 + 1) + 1 + 16  # the largest logit is known; read; exponent
    assert when.keys_end == weight + 2 + 1 + 12  # two levels of the sum, its total, the ETU
    assert when.scores_end == when.keys_end + 2 + 1 + 8  # the VSU is done; read; divide
    assert when.end == when.scores_end + 1 + 5 + 2 + 2  # the row, its sum, two turns of lanes


def test_the_simulators_memory_bounds_both() -> None:
    """With the latencies of the gates, the simulator's keys end in the same cycle."""
    design, shape = Design.load(), model("llama-2-7b")
    gates = dataclasses.replace(
        design,
        multiply_cycles=1,
        scale_cycles=1,
        exp_cycles=18,  # with a write and a read of the attention buffer
        max_sum_cycles=5,
    )
    source = Synthetic.load("s")
    rule = design.rule(shape, source.key_share, source.value_share)
    _, (decision,) = source.steps(rule, shape, 0, 0, 300, [300])
    ours, theirs = compared(gates, shape, decision, 300)
    assert ours.keys_end == theirs.keys_end
    assert ours.scores_end < theirs.scores_end, "only kept weights are divided, in 8 cycles, not 15"
    after = theirs.end - gates.sum_cycles - theirs.scores_end  # the last row's arrival
    assert ours.end - ours.scores_end == after + 7, "its product and sum, three turns, two parts"


def test_waves_do_not_mix_kinds() -> None:
    assert waves_of(5, 7, 4) == ([4, 1, 4, 3], 2)
    assert waves_of(4, 0, 4) == ([4], 1)


def test_parts_make_a_whole() -> None:
    """Each part is there as often as the top level has it; the control has none of their gates."""
    counts = {circuit.name: count for circuit, count in parts(Size(2, 4, 2))}
    assert counts == {
        "multiplier_lane_4": 2,
        "adder_tree_2": 1,
        "exponent": 2,
        "fp16_divide": 2,
        "max_and_sum_2": 1,
        "etu": 1,
        "vsu": 1,
        "top_level_control_2x4": 1,
    }
    assert {circuit.name: count for circuit, count in parts(Size(2, 2, 2))} == SMALL_TOP_LEVEL
    small = control(Size(2, 4, 2))
    module, _, inputs, outputs = module_of(small)
    assert set(small.inputs) == set(inputs) and set(small.outputs) == set(outputs)
    Fragment.get(module, None)  # all its signals fit their ports


def test_what_the_checks_compare(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = ran.checks
    assert check.status == "hit" and check.ours == check.published
    monkeypatch.setattr(top_level_checks, "run", lambda size, jobs: ran.found[-1:])
    (check,) = top_level_checks.gates()
    assert check.status == "hit"
    wrong = lambda size, head: dataclasses.replace(  # noqa: E731
        top_level_model.computed(size, head), kept=[0]
    )
    monkeypatch.setattr(top_level_checks, "computed", wrong)
    (check,) = top_level_checks.gates()
    assert check.status == "miss"
    monkeypatch.undo()
    cycles = top_level_checks.cycles()
    assert {check.status for check in cycles} == {"hit"}
    monkeypatch.setattr(top_level_checks, "LENGTH", 256)
    json.dumps([dataclasses.asdict(check) for check in (*cycles, *top_level_checks.precision())])
    assert math.isclose(top_level_checks._error(*_exact()), 0, abs_tol=2e-3)


def _exact() -> tuple[Head, int, list[int], Any]:
    head = head_of(np.zeros(4), [0, 1, 2, 3], 4, 8, (0.9, 0.0))
    mean = head.values.astype(np.float64).mean(0)
    return head, 4, [0, 1, 2, 3], mean
