"""Engines that hang: pulse.py, and how instances.py ends them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_fleet import generated, text, under_way

from serving import Served, until
from suffice import native
from suffice.errors import InputError
from suffice.serve.pulse import TURN_SECONDS, Pulse, turns
from suffice.serve.settings import Settings

two_cores = pytest.mark.skipif(native.cores() < 2, reason="two engines need two cores")


def stop(server: Served, at: int = 0) -> int:
    pid = server.front.instance.members[at].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return int(pid)


@two_cores
def test_requests_of_an_engine_that_is_stopped_go_on_in_the_other(
    serving: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"heartbeat_seconds": 1.2, "instances": 2, "options": {"step_seconds": 0.02}}
    with serving(**settings) as server, ThreadPoolExecutor() as pool:
        alone = [text(server, seed) for seed in range(6)]
        asks = [pool.submit(text, server, seed) for seed in range(6)]
        until(lambda: under_way(server) == [3, 3] and min(generated(server)) > 2)
        stop(server)
        fleet = server.front.instance
        until(lambda: not fleet.members[0].usable)
        assert text(server, 1) == alone[1], "a new request goes to the other at once"
        assert fleet.restarts == 0 and under_way(server)[0] == 3
        soon = dataclasses.replace(server.front.settings, hang_seconds=4.0)
        server.run(lambda: setattr(fleet.members[0], "_settings", soon))
        assert [ask.result() for ask in asks] == alone
        assert (fleet.restarts, fleet.failovers) == (1, 3)
        until(lambda: server.client.get("/health").status_code == 200)
    assert "the engine hangs and is ended: it has said nothing for" in caplog.text


@pytest.mark.parametrize("instances", [1, pytest.param(2, marks=two_cores)])
def test_a_step_that_never_ends(
    serving: Callable[..., Any], tmp_path: Path, instances: int
) -> None:
    """The engine's heart beats on; its request gets the same text from the next one."""
    hang = tmp_path / "hang"
    with serving(options={"hang": str(hang)}, hang_seconds=3.0, instances=instances) as server:
        alone = text(server, 3)
        hang.touch()
        assert text(server, 3) == alone
        fleet = server.front.instance
        assert not hang.exists() and (fleet.restarts, fleet.failovers) == (1, 1)


def test_a_stop_that_is_shorter_than_the_limit_costs_nothing(serving: Callable[..., Any]) -> None:
    options = {"step_seconds": 0.02}
    with serving(options=options, heartbeat_seconds=1.2) as server, ThreadPoolExecutor() as pool:
        alone = text(server, 4)
        ask = pool.submit(text, server, 4)
        until(lambda: sum(generated(server)) > 2)
        pid = stop(server)
        until(lambda: server.client.get("/health").status_code == 503)
        os.kill(pid, signal.SIGCONT)
        assert ask.result() == alone
        assert server.front.instance.restarts == 0


def test_an_engine_without_work_may_make_no_step() -> None:
    pulse, settings = Pulse(), Settings("m", step_seconds=1.0, hang_seconds=3.0)
    for _ in range(100):
        pulse.passed(1.0, busy=False)
        pulse.heard(step=False)
    assert pulse.ailment(settings) is None
    pulse.passed(1.5, busy=True)
    pulse.heard(step=False)
    assert pulse.ailment(settings) == "the engine has work and made no step for 2 seconds"
    assert pulse.hangs(settings) is None
    pulse.passed(2.0, busy=True)
    pulse.heard(step=False)
    assert pulse.hangs(settings) == "it has work and made no step for 4 seconds"
    pulse.heard(step=True)
    assert pulse.hangs(settings) is None and pulse.ailment(settings) is None


def test_time_in_which_the_server_did_not_run_is_not_counted() -> None:
    """After Ctrl-Z the engines, which were stopped with it, are not said to hang."""

    async def late() -> float:
        each = turns()
        await anext(each)
        time.sleep(8 * TURN_SECONDS)
        return await anext(each)

    assert asyncio.run(late()) <= 2 * TURN_SECONDS


def test_the_limit_is_checked() -> None:
    with pytest.raises(InputError, match="hang_timeout=0: must be a number above 0"):
        Settings("m", hang_seconds=0)
