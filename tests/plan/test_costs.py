"""The model of a step's cost: its fit, its errors, and other cores."""

from __future__ import annotations

import numpy as np
import pytest

from planning import costs
from suffice.engine.protocol import Rows
from suffice.plan.calibrate import Measured, grouped, undisturbed
from suffice.plan.costs import KNOTS, Call, Hardware, Residual, StepCosts, fitted, nonnegative
from suffice.plan.runner import Arena, Cache, Held
from suffice.plan.stored import Model


def calls() -> list[Call]:
    decode = [Call(rows, rows, rows * depth) for rows in (1, 3, 8, 20, 32) for depth in (10, 900)]
    prompts = [
        Call(part, last, 0, part * depth + part * part // 2)
        for part in (8, 16, 32, 64, 96, 128)
        for depth in (0, 700, 2000)
        for last in (0, 1)
    ]
    return decode + prompts


def test_the_fit_finds_the_costs_that_made_the_times() -> None:
    real = costs(head=(0.001, 0.0002))
    linear, head, read, pair, residual = fitted(calls(), [real.seconds(each) for each in calls()])
    found = StepCosts(linear, head, read, pair, 0, 0, 0, 0, 0, 0, real.hardware)
    for call in (Call(5, 5, 2000), Call(40, 0, 0, 4000), Call(200, 4, 100, 9000)):
        assert found.seconds(call) == pytest.approx(real.seconds(call), rel=0.02)
    assert residual.p95 < 0.01 and residual.measured == len(calls())


def test_what_the_model_lacks_shows_in_the_residual() -> None:
    real = costs()
    seconds = [real.seconds(each) + 1e-8 * each.pairs**1.5 for each in calls()]
    assert fitted(calls(), seconds)[-1].p95 > 0.1


def test_a_disturbed_call_does_not_bend_the_fit() -> None:
    real = costs()
    measured = [Measured(each, real.seconds(each), 1) for each in calls()]
    slow = measured[5]
    measured.append(Measured(slow.call, 20 * slow.seconds, 1))
    linear, head, read, pair, residual = undisturbed(measured)
    found = StepCosts(linear, head, read, pair, 0, 0, 0, 0, 0, 0, real.hardware)
    assert found.seconds(slow.call) == pytest.approx(slow.seconds, rel=0.05)
    assert residual.measured == len(calls())


def test_no_cost_is_negative() -> None:
    draw = np.random.default_rng(1)
    matrix = draw.random((40, 5))
    wanted = np.array([3.0, 0.0, -0.5, 2.0, 0.0])
    found = nonnegative(matrix, matrix @ wanted)
    assert (found >= 0).all() and found[2] == 0
    gradient = matrix.T @ (matrix @ found - matrix @ wanted)
    assert np.abs(gradient[found > 0]).max() < 1e-6 and gradient.min() > -1e-6


def test_a_call_counts_its_rows_and_what_they_attend_to() -> None:
    model = Model("", 100, 128, 30, 2, "iterative", True, True)

    def held(length: int) -> Held:
        cache = Cache(model, 10, growth=None, limit=100, arena=Arena())  # type: ignore[arg-type]
        cache.length = length
        return Held(cache)

    batch = [
        Rows(held(10), [1]),
        Rows(held(20), [1, 2], 0),
        Rows(held(30), [1, 2, 3], 1, prompt=True),
    ]
    assert Call.of(batch) == Call(rows=6, outputs=2, read=11 + 43, pairs=30 * 3 + 6)


def test_other_cores_scale_what_is_computed_and_other_memory_what_is_read() -> None:
    own = costs()  # 40 MB of weights at 20 GB/s: 2 ms of a call
    call = Call(1, 1, 0)
    whole = own.seconds(call)
    assert own.seconds(call, own.hardware) == pytest.approx(whole)
    assert own.seconds(call, Hardware(4, 2e10)) == pytest.approx(0.002 + (whole - 0.002) / 2)
    assert own.seconds(call, Hardware(2, 1e10)) == pytest.approx(whole + 0.002)
    deep = Call(1, 1, 10_000)  # 10 MB of keys and values: 0.5 ms of 10
    more = own.seconds(deep, Hardware(2, 1e10)) - own.seconds(deep)
    assert more == pytest.approx(0.0025)


def test_rows_beyond_the_last_knot_cost_as_those_before_it() -> None:
    own = costs()
    step = own.seconds(Call(KNOTS[-1], 0)) - own.seconds(Call(KNOTS[-1] - 1, 0))
    assert own.seconds(Call(300, 0)) == pytest.approx(own.seconds(Call(128, 0)) + 172 * step)


def test_medians_are_of_calls_of_the_same_kind() -> None:
    same = [Measured(Call(2, 2, read), second, 2) for read, second in ((10, 1), (20, 9), (30, 2))]
    prompts = [Measured(Call(8, 0, 0, pairs), 5, 0) for pairs in (36, 100)]
    first, *rest = grouped([*same, *prompts])
    assert first.call == Call(2, 2, 20) and first.seconds == 2
    assert rest == prompts


def test_residuals_are_relative() -> None:
    found = Residual.of(np.array([1.1, 2.0, 2.7]), np.array([1.0, 2.0, 3.0]))
    assert found.median == pytest.approx(0.1) and found.measured == 3
