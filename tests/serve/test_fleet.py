"""Several engines behind one server: fleet.py."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from suffice.engine.work import EngineStats, Look
from suffice.native import cores
from suffice.serve.fleet import summed, together

LOOKS = [
    Look(EngineStats(running=1, steps=5, last_step_at=3.0), [[1, 2]], [[3, 4]], [[9, 9]], "exact"),
    Look(
        EngineStats(running=2, steps=7, last_step_at=2.0),
        [[10, 20]],
        [[30, 40]],
        [[90, 90]],
        "estimate",
        0.25,
        {"tokens": 4},
    ),
]


def test_looks_at_engines_add_up() -> None:
    found = together(LOOKS)
    assert found.key_rows == [[11, 22]] and found.value_rows == [[33, 44]]
    assert found.rows_held == [[99, 99]]
    assert (found.guarantee, found.missing, found.audit) == ("estimate", 0.25, {"tokens": 4})
    assert (found.stats.running, found.stats.steps) == (3, 12)
    assert together(LOOKS[:1]) is LOOKS[0]


def test_counts_add_up_and_times_are_the_latest() -> None:
    found = summed(dataclasses.asdict(look.stats) for look in LOOKS)
    assert (found["steps"], found["last_step_at"]) == (12, 3.0)


@pytest.mark.skipif(cores() < 2, reason="two engines need two cores")
def test_two_engines_share_requests_and_one_takes_over(serving: Callable[..., Any]) -> None:
    with serving(instances=2, options={"step_seconds": 0.02}) as server:
        members = server.front.instance.members

        def ask(at: int) -> str:
            answer = server.chat("hello there", max_tokens=40, seed=at)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["choices"][0]["message"]["content"])

        alone = [ask(at) for at in range(4)]
        with ThreadPoolExecutor() as pool:
            asks = [pool.submit(ask, at) for at in range(4)]
            while not all(member.tickets for member in members):
                assert not all(each.done() for each in asks), "one engine had all requests"
            os.kill(members[0].pid or 0, signal.SIGKILL)
            assert [each.result() for each in asks] == alone
        assert members[0].restarts == 1 and members[1].restarts == 0
