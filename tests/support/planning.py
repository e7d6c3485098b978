"""A calibration for tests of `suffice plan`, with round costs, and settings of it."""

from __future__ import annotations

from typing import Any

from suffice.plan.costs import KNOTS, Hardware, Residual, StepCosts
from suffice.plan.setting import FrontCosts, Setting, setting
from suffice.plan.stored import Calibration, Model

FREE = FrontCosts(0, 0, 0, 0, 0, 0)


def costs(**other: Any) -> StepCosts:
    """Return costs: a call is 4 ms and 0.5 ms a row, a step 0.2 ms, on two cores."""
    before = (0, *KNOTS[:-1])
    given: dict[str, Any] = {
        "linear": tuple(
            (0.004 if knot == 1 else 0.0) + 0.0005 * (knot - low)
            for low, knot in zip(before, KNOTS, strict=True)
        ),
        "head": (0.0, 0.0),
        "read": 1e-6,
        "pair": 1e-7,
        "step": 0.0002,
        "sample": 0.0,
        "mapped": 0.0,
        "copied": 0.0,
        "weight_bytes": 4e7,
        "row_bytes": 1000,
        "hardware": Hardware(2, 2e10),
    }
    return StepCosts(**{**given, **other})


def calibration(context: int = 4096, **other: Any) -> Calibration:
    """Return a calibration of a machine of two cores with these costs."""
    model = Model(
        name="planned",
        context=context,
        tile_rows=128,
        known_rows=30,
        layers=4,
        growth="step:rows=256",
        shares_prompts=True,
        shares_answers=True,
    )
    return Calibration(
        cpu="test",
        isa="base",
        options="",
        measured="2026-01-01",
        cores=2,
        bandwidth=2e10,
        bandwidth_one=1.5e10,
        model=model,
        costs=costs(**other),
        residual=Residual(0.01, 0.05, 100),
        overhead=Residual(0.01, 0.05, 100),
    )


def engines(count: int = 1, **other: Any) -> Setting:
    """Return engines of two cores, each on a node of its own, and a front that costs nothing."""
    return setting(calibration(), count, **{"front": FREE, **other})
