"""Engines that hang: pulse.py, and how instances.py ends them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_fleet import generated, text, under_way

from serving import Served, real, until
from suffice import native
from suffice.errors import InputError
from suffice.serve.errors import Problem
from suffice.serve.processes import instances, pulse
from suffice.serve.processes.life import Life
from suffice.serve.processes.pulse import Pulse, turns
from suffice.serve.settings import Settings

two_cores = pytest.mark.skipif(native.cores() < 2, reason="two engines need two cores")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the next engine at once."""
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.01)


def stop(server: Served, at: int = 0) -> int:
    pid = server.front.instance.members[at].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return int(pid)


def limited(server: Served, at: int = 0, **limits: float) -> None:
    """Have other limits for the engine that is there, and none for the next one."""
    found = server.front.instance.members[at]._current.pulse
    less = dataclasses.replace(server.front.settings, **limits)

    def limit() -> None:
        found.ailment = lambda settings: Pulse.ailment(found, less)
        found.hangs = lambda settings: Pulse.hangs(found, less)

    server.run(limit)


@two_cores
def test_requests_of_an_engine_that_is_stopped_go_on_in_the_other(
    serving: Callable[..., Any], tmp_path: Path, logged: list[str]
) -> None:
    hold = tmp_path / "hold"
    options = {"hold": str(hold)}
    with serving(instances=2, options=options) as server, ThreadPoolExecutor() as pool:
        alone = [*pool.map(lambda seed: text(server, seed), range(6))]
        hold.write_text("20")
        asks = [pool.submit(text, server, seed) for seed in range(6)]
        until(lambda: under_way(server) == [3, 3] and min(generated(server)) > 2)
        stop(server)
        hold.unlink()
        limited(server, heartbeat_seconds=0.2)
        fleet = server.front.instance
        until(lambda: not fleet.members[0].usable)
        assert text(server, 1) == alone[1], "a new request goes to the other at once"
        assert fleet.restarts == 0 and under_way(server)[0] == 3
        limited(server, hang_seconds=0.2)
        assert [ask.result() for ask in asks] == alone
        assert (fleet.restarts, fleet.failovers) == (1, 3)
        until(lambda: server.client.get("/health").status_code == 200)
    assert any("the engine hangs and is ended: it has said nothing for" in each for each in logged)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=two_cores)])
def test_a_step_that_never_ends(serving: Callable[..., Any], tmp_path: Path, count: int) -> None:
    """The engine's heart beats on; its request gets the same text from the next one."""
    hang = tmp_path / "hang"
    options = {"hang": str(hang)}
    with (
        serving(options=options, instances=count) as server,
        ThreadPoolExecutor() as pool,
    ):
        alone = text(server, 3)
        hang.touch()
        ask = pool.submit(text, server, 3)
        until(lambda: not hang.exists())
        limited(server, under_way(server).index(1), hang_seconds=0.7)  # a heart beats by then
        assert ask.result() == alone
        fleet = server.front.instance
        assert not hang.exists() and (fleet.restarts, fleet.failovers) == (1, 1)


def test_requests_of_a_real_engine_that_is_stopped_go_on_in_the_next(words: Path) -> None:
    def ask(seed: int) -> Any:
        body = {"prompt": "once", "seed": seed, "temperature": 1.0, "ignore_eos": True}
        answer = server.post("/v1/completions", {**body, "max_tokens": 200})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    with real(words) as server, ThreadPoolExecutor() as pool:
        alone = [ask(seed) for seed in range(5)]
        fleet = server.front.instance
        asks = [pool.submit(ask, seed) for seed in range(4)]
        until(lambda: sum(generated(server)) > 4 or all(each.done() for each in asks))
        pid = stop(server)
        asks.append(pool.submit(ask, 4))
        until(lambda: under_way(server)[0] > 0)
        limited(server, hang_seconds=0.2)
        until(lambda: fleet.restarts == 1)
        assert [each.result() for each in asks] == alone
        assert fleet.failovers >= 1 and fleet.members[0].pid != pid


def test_an_engine_that_hangs_while_it_loads_is_replaced(
    serving: Callable[..., Any], tmp_path: Path, logged: list[str]
) -> None:
    late = tmp_path / "late"
    with serving(options={"late": str(late)}) as server, ThreadPoolExecutor() as pool:
        alone = text(server, 3)
        fleet = server.front.instance
        member = fleet.members[0]
        late.touch()
        os.kill(member.pid, signal.SIGKILL)
        until(lambda: not fleet.ready)
        ask = pool.submit(text, server, 3)
        until(lambda: fleet.restarts and member._current and member._current.loads)
        limited(server, hang_seconds=0.2)
        line = "ended: it loads the model and has done nothing for"
        until(lambda: any(line in each for each in logged))
        late.unlink()
        assert ask.result() == alone and fleet.restarts >= 2


def test_a_first_engine_that_hangs_while_it_loads_ends_the_server(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    late = tmp_path / "late"
    late.touch()
    with (
        pytest.raises(Problem, match="the engine did not start"),
        serving(options={"late": str(late)}, hang_seconds=0.5),
    ):
        pass


def test_an_engine_that_computes_or_reads_while_it_loads_goes_on() -> None:
    beats, settings = Pulse(), Settings("m", hang_seconds=3.0)
    for spent in range(100):
        beats.loads(1.0, spent=(spent // 2, 7))
        assert beats.hangs(settings) is None
    for _ in range(3):
        beats.loads(1.0, spent=(49, 7))
    assert beats.hangs(settings) == "it loads the model and has done nothing for 4 seconds"
    beats.heard(step=False)
    assert beats.hangs(settings) is None


def test_what_a_process_has_spent_grows_only_while_it_goes_on() -> None:
    life = Life.__new__(Life)
    life.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = life.spent()
        until(lambda: life.spent() > before)
        life.process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{life.process.pid}/stat")
        until(lambda: ") T " in state.read_text())
        before = life.spent()
        time.sleep(0.1)
        assert life.spent() == before
    finally:
        life.process.kill()
        life.process.wait()
    assert life.spent() == ()


def test_a_stop_that_is_shorter_than_the_limit_costs_nothing(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    with serving(options={"hold": str(hold)}) as server, ThreadPoolExecutor() as pool:
        alone = text(server, 4)
        hold.write_text("20")
        ask = pool.submit(text, server, 4)
        until(lambda: sum(generated(server)) > 2)
        pid = stop(server)
        limited(server, heartbeat_seconds=0.2)
        until(lambda: server.client.get("/health").status_code == 503)
        os.kill(pid, signal.SIGCONT)
        hold.unlink()
        assert ask.result() == alone
        assert server.front.instance.restarts == 0


def test_an_engine_without_work_may_make_no_step() -> None:
    beats, settings = Pulse(), Settings("m", step_seconds=1.0, hang_seconds=3.0)
    for _ in range(100):
        beats.passed(1.0, busy=False)
        beats.heard(step=False)
    assert beats.ailment(settings) is None
    beats.passed(1.5, busy=True)
    beats.heard(step=False)
    assert beats.ailment(settings) == "the engine has work and made no step for 2 seconds"
    assert beats.hangs(settings) is None
    beats.passed(2.0, busy=True)
    beats.heard(step=False)
    assert beats.hangs(settings) == "it has work and made no step for 4 seconds"
    beats.heard(step=True)
    assert beats.hangs(settings) is None and beats.ailment(settings) is None


def test_time_in_which_the_server_did_not_run_is_not_counted() -> None:
    """After Ctrl-Z the engines, which were stopped with it, are not said to hang."""

    async def late() -> float:
        each = turns()
        await anext(each)
        time.sleep(8 * pulse.TURN_SECONDS)
        return await anext(each)

    assert asyncio.run(late()) <= 2 * pulse.TURN_SECONDS


def test_the_limit_is_checked() -> None:
    with pytest.raises(InputError, match="hang_timeout=0: must be a number above 0"):
        Settings("m", hang_seconds=0)
