"""Goals, figures, and the search for the fewest engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from planning import calibration, engines
from suffice.errors import InputError
from suffice.plan import figures
from suffice.plan.cluster import Cluster, Outcome
from suffice.plan.search import SATURATED, fewest, reason, smallest
from suffice.plan.trace import Arrival

pytestmark = pytest.mark.usefixtures("one_thread")


def holding(from_: int, front: float = 0.1) -> Callable[[int], dict[str, Any]]:
    """Return a load that `from_` engines hold, and fewer do not."""

    def simulate(instances: int) -> dict[str, Any]:
        held = 1.0 if instances >= from_ else 0.5
        missed = {"ttft": round(100 * (1 - held)), "error": 0, "any": round(100 * (1 - held))}
        return {
            "held": held,
            "missed": missed,
            "requests": 100,
            "utilisation": 0.7,
            "front_utilisation": front,
        }

    return simulate


@pytest.mark.parametrize("least", [1, 2, 3, 7, 8, 9, 100, 128])
def test_the_search_finds_the_fewest(least: int) -> None:
    tries = list(smallest(holding(least), 0.99, most=128))
    found = fewest(tries)
    assert found.holds and found.instances == least
    assert len(tries) <= 2 * max(least, 2).bit_length() + 1
    assert len({each.instances for each in tries}) == len(tries)


def test_the_search_ends_at_the_most() -> None:
    tries = list(smallest(holding(101), 0.99, most=100))
    assert not any(each.holds for each in tries)
    assert fewest(tries).instances == tries[-1].instances == 100


def test_more_engines_are_not_tried_when_the_front_is_the_limit() -> None:
    tries = list(smallest(holding(50, front=SATURATED), 0.99, most=100))
    assert [each.instances for each in tries] == [1]
    assert "the front is busy for 98% of the time" in tries[0].reason


def test_one_number_alone_can_be_asked_for() -> None:
    tries = list(smallest(holding(5), 0.99, most=100, only=3))
    assert [(each.instances, each.holds) for each in tries] == [(3, False)]


def test_nothing_more_is_tried_if_requests_that_are_alone_miss_the_goals() -> None:
    (only,) = smallest(holding(5), 0.99, most=100, alone=lambda: holding(2)(1))
    assert only.vain and not only.holds and only.reason.startswith("on an idle engine 50.00%")
    tries = list(smallest(holding(5), 0.99, most=100, alone=lambda: holding(1)(1)))
    assert fewest(tries).instances == 5 and not any(each.vain for each in tries)


def test_the_reason_names_what_most_miss() -> None:
    late = reason(holding(2)(1), 0.99)
    assert late.startswith("50.00% of the requests hold the goals, 50.00% miss ttft")
    assert late.endswith("the engines work for 70% of the time")
    found = holding(2)(1)
    found["missed"]["error"] = 60
    assert "60.00% are refused or fail" in reason(found, 0.99)


def test_goals_and_shares_are_read() -> None:
    found = figures.goals("ttft=1s, tpot=50ms,gap=200us")
    assert found == pytest.approx({"ttft": 1, "tpot": 0.05, "gap": 2e-4})
    assert figures.share("99%") == figures.share("0.99") == 0.99


@pytest.mark.parametrize("text", ["", "ttft", "ttft=1", "ttft=-1s", "tfft=1s", "ttft=nans"])
def test_bad_goals_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be like ttft=1s,tpot=50ms"):
        figures.goals(text)
    with pytest.raises(InputError, match="each once"):
        figures.goals("ttft=1s,ttft=2s")


@pytest.mark.parametrize("text", ["", "0", "101%", "1.5", "most", "nan"])
def test_bad_shares_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be a share of the requests"):
        figures.share(text)


def outcome(*chunks: float, error: str | None = None) -> Outcome:
    return Outcome(Arrival(1.0, 5, 4), 1.0, list(chunks), 0.25, 0, error, True)


def test_times_are_those_of_the_serving_benchmark() -> None:
    found = figures.times(outcome(2.0, 2.5, 4.0, 4.5))
    assert found["ttft"] == 1.0 and found["e2el"] == 3.5 and found["queue"] == 0.25
    assert found["tpot"] == pytest.approx(2.5 / 3) and found["gap"] == 1.5


def test_who_misses_a_goal_is_counted_once_for_each_and_once_for_any() -> None:
    all_ = [outcome(1.5, 1.6), outcome(3.0, 5.0), outcome(3.0, 3.1), outcome(error="refused")]
    found = figures.missed(all_, {"ttft": 1.0, "tpot": 1.0})
    assert found == {"ttft": 2, "tpot": 1, "error": 1, "any": 3}


def test_a_run_that_answered_nothing_has_figures_without_numbers() -> None:
    run = Cluster(engines(), calibration()).run([Arrival(0.0, 5000, 1)])
    found = figures.summary(run, {"ttft": 1.0})
    assert found["held"] == 0 and found["failed"] == 1
    assert math.isnan(found["p50_ttft_ms"])
