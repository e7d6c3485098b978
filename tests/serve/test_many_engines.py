"""Rules that hold across the engines of a server: shares of keys, time limits, texts."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_fleet import generated, text, under_way
from test_renewal import fleet, kill, pids, sharing_only, two_cores

from serving import real, until
from suffice.cli.instances import InstanceFlags
from suffice.cli.options import ModelFlags
from suffice.engine.options import EngineOptions
from suffice.errors import InputError, OptionError
from suffice.serve.processes import instances, wire
from suffice.serve.processes.cores import default_instances
from suffice.serve.processes.life import Weights
from suffice.serve.processes.pending import Mailbox, Ticket
from suffice.serve.settings import Settings


@two_cores
def test_keys_share_the_time_of_all_engines(words: Path, engine_path: None) -> None:
    """One key's flood holds another's few requests up by no more than turns."""
    order: list[str] = []

    def ask(key: str, seed: int) -> None:
        body = {"prompt": f"hello {seed}", "max_tokens": 40, "ignore_eos": True, "seed": seed}
        headers = {"authorization": f"Bearer {key}"}
        answer = server.client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        order.append(key)

    with (
        real(words, instances=2, places=1, api_keys=("many", "few")) as server,
        ThreadPoolExecutor(40) as pool,
    ):
        for pid in pids(server):  # until all are queued
            os.kill(pid or 0, signal.SIGSTOP)
        asks = [pool.submit(ask, "many", seed) for seed in range(30)]
        until(lambda: sum(under_way(server)) == 30)
        asks += [pool.submit(ask, "few", seed) for seed in range(4)]
        until(lambda: sum(under_way(server)) == 34)
        for pid in pids(server):
            os.kill(pid or 0, signal.SIGCONT)
        for each in asks:
            each.result()
    last = max(at for at, key in enumerate(order) if key == "few")
    assert order.count("few") == 4 and len(order) == 34
    assert last < 26, "in the order of arrival they would be the last"


@two_cores
def test_a_time_limit_holds_across_engines(serving: Callable[..., Any], tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.write_text("20")
    options = {"hold": str(hold)}
    with (
        serving(instances=2, options=options, request_seconds=60.0) as server,
        ThreadPoolExecutor() as pool,
    ):
        ask = pool.submit(server.chat, max_tokens=400)
        until(lambda: sum(generated(server)) > 10)
        (at,) = [at for at, count in enumerate(under_way(server)) if count]
        kill(server, at)
        until(lambda: fleet(server).failovers == 1)
        server.front.settings = dataclasses.replace(server.front.settings, request_seconds=0.1)
        answer = ask.result()
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline"
        assert fleet(server).failovers == 1
        assert under_way(server) == [0, 0]


def test_an_engine_with_bad_options_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.01)
    member = instances.Instance(
        Settings(model="m", options={"model": "no/such/file"}), lambda *given: None
    )

    async def started() -> None:
        with pytest.raises(InputError, match="no/such/file"):
            await member.start()
        assert member._task is not None
        await asyncio.wait_for(member._task, 30)  # without `close`
        assert member.restarts == 0

    asyncio.run(started())


def test_an_engine_says_which_option_is_bad() -> None:
    fault = OptionError("threads", 0, "must be at least 1", ", or None for all")
    for error in (fault, OptionError("model", Path("m"), "is none"), InputError("bad")):
        sent = wire.read_up(wire.frame(wire.Failed.of(error))[wire.LENGTH.size :])
        assert isinstance(sent, wire.Failed)
        back = sent.error()
        assert type(back) is type(error) and sent.message == str(error)
    again = wire.Failed.of(fault).error()
    assert isinstance(again, OptionError) and vars(again) == vars(fault)


@sharing_only
def test_an_engine_loads_once_another_has_packed() -> None:
    async def told() -> None:
        loaded: list[str] = []
        weights, packed = Weights(), asyncio.Event()
        lives: list[Any] = [
            SimpleNamespace(load=partial(loaded.append, name), settled=packed.wait)
            for name in ("first", "second")
        ]
        loading = asyncio.gather(*map(weights.load, lives))
        for _ in range(5):  # turns of the loop, more than it takes
            await asyncio.sleep(0)
        assert loaded == ["first"]
        packed.set()
        await loading
        assert loaded == ["first", "second"]
        weights.close()

    asyncio.run(told())


def test_a_deadline_counts_from_the_arrival_of_a_request() -> None:
    """The engine that goes on with it has the time that is left."""
    member = instances.Instance(Settings(model="m"), lambda *given: None)
    sent: list[wire.Submit] = []
    member._life = SimpleNamespace(tell=sent.append)  # type: ignore[assignment]
    for age, left in ((0.0, 60.0), (45.0, 15.0), (90.0, 0.0)):
        ticket = Ticket(wire.Submit("a", [1], {}, deadline=60.0), 1, 0, Mailbox())
        ticket.created -= age
        member.submit(ticket)
        assert sent[-1].deadline == pytest.approx(left, abs=1.0)
    member.submit(Ticket(wire.Submit("a", [1], {}), 1, 0, Mailbox()))
    assert sent[-1].deadline is None


@two_cores
def test_texts_stay_the_same_while_engines_are_killed(serving: Callable[..., Any]) -> None:
    """Eighty requests of eight clients, and an engine killed after every twelfth."""
    done = 0
    with serving(instances=2, options={"step_seconds": 0.003}) as server:
        alone = [text(server, seed, max_tokens=60) for seed in range(10)]
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(8) as pool:
            patch.setattr(instances, "FIRST_PAUSE", 0.01)

            def ask(number: int) -> str:
                nonlocal done
                found = text(server, number % 10, max_tokens=60)
                done += 1
                return found

            asks = [pool.submit(ask, number) for number in range(80)]
            for at in range(6):
                until(lambda at=at: done >= 12 * at and None not in pids(server), 60)
                kill(server, at % 2)
            assert [ask.result() for ask in asks] == alone * 8
        until(lambda: fleet(server).restarts >= 6, 60)
        until(lambda: server.client.get("/health").status_code == 200, 60)
        assert fleet(server).restarts == 6


def test_flags_of_engines() -> None:
    model = ModelFlags(options=EngineOptions(model="m", threads=2))
    assert InstanceFlags().with_threads(model) is model
    assert InstanceFlags(threads_per_instance=2).with_threads(model).options.threads == 2
    with pytest.raises(InputError, match="--threads-per-instance 3 and --threads 2 contradict"):
        InstanceFlags(threads_per_instance=3).with_threads(model)
    assert InstanceFlags(instances=7).engines(None) == 7
    assert InstanceFlags().engines(1) == default_instances(1)
