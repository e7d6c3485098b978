"""The pace is that of the last seconds, whatever the steps."""

from __future__ import annotations

import pytest

from fake_engine import fake_llm
from suffice import SamplingParams
from suffice.engine.pace import WINDOW_SECONDS, Pace
from suffice.engine.service import Engine, Work


@pytest.mark.parametrize("step", [0.003, 0.1, 0.7])
def test_an_even_pace_is_found(step: float) -> None:
    pace, now, total = Pace(100.0), 100.0, 0
    while now < 120.0:
        now, total = now + step, total + 3
        pace.note(total, now)
    assert pace.per_second(total, now) == pytest.approx(3 / step, rel=0.2)


def test_it_follows_a_change_and_ends_at_zero() -> None:
    pace = Pace(0.0)
    for at in range(1, 101):
        pace.note(10 * at, at / 10)
    for at in range(1, 101):
        pace.note(1000 + at, 10 + at / 10)
    assert pace.per_second(1100, 20.0) == pytest.approx(10, rel=0.05)
    assert pace.per_second(1100, 20.0 + WINDOW_SECONDS) == 0.0


def test_the_first_seconds_count_from_the_start() -> None:
    pace = Pace(0.0)
    pace.note(50, 1.0)
    assert pace.per_second(50, 1.0) == 50.0
    assert Pace(3.0).per_second(0, 3.0) == 0.0


def test_an_engine_tells_it() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.05
        return now[0]

    engine = Engine(fake_llm(), clock=clock)
    engine.submit(Work("a", (3, 4), SamplingParams(max_tokens=9, ignore_eos=True)), lambda d: None)
    engine.drain()
    assert engine.stats().tokens_per_second > 0
    assert engine.look().stats.tokens_per_second > 0
    now[0] += 60
    assert engine.stats().tokens_per_second == 0
    engine.close()
