"""An engine as a replica: streams, known tokens, refusals, health.

Tests ray_engine.py, without Ray.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from scripted_engine import VOCABULARY, token_of
from serving import ENGINE
from suffice.errors import InputError
from suffice.serve.processes import wire
from suffice.serve.processes.ray_engine import EngineReplica, encode, told
from suffice.serve.settings import Settings

PROMPT = [1, 2, 3]


def with_replica(
    work: Callable[[Any], Awaitable[Any]], hang_seconds: float = 120.0, **options: Any
) -> Any:
    """Return what a coroutine gives that gets a replica of a scripted engine."""

    async def run() -> Any:
        settings = Settings("scripted", options, engine=ENGINE, hang_seconds=hang_seconds)
        replica: Any = EngineReplica.__new__(EngineReplica)
        await replica.__init__(settings, 1, "first")
        try:
            return await work(replica)
        finally:
            replica._sweeper.cancel()
            await replica._instance.close()
            replica._leases.close()

    return asyncio.run(run())


def submit(name: str = "a", prompt: list[int] = PROMPT, **more: Any) -> bytes:
    params = {"max_tokens": 20, "seed": more.pop("seed", 7)}
    return encode(wire.Submit(name, prompt, params, **more))


async def taken(replica: Any, work: bytes) -> tuple[list[int], Any]:
    """Return the tokens of a request, and the last message."""
    tokens: list[int] = []
    async for part in replica.generate(work):
        message = told.decode(part)
        tokens += [token for delta in message.deltas for token in delta.tokens]
    return tokens, message


def test_a_request_goes_on_from_known_tokens(engine_path: None) -> None:
    expected = [token_of(tuple(PROMPT), 7, 0, at) for at in range(20)]

    async def work(replica: Any) -> None:
        facts = wire.read_up((await replica.facts())[wire.LENGTH.size :])
        assert isinstance(facts, wire.Facts) and facts.fingerprint == "fp_scripted"
        tokens, last = await taken(replica, submit())
        assert tokens == expected and last.engine == "first" and last.deltas[-1].final
        tokens, _ = await taken(replica, submit("b", known=[expected[:8]]))
        assert tokens == expected[8:]

    with_replica(work)


def test_an_engine_that_dies_goes_on_in_its_replica(engine_path: None) -> None:
    expected = [token_of(tuple(PROMPT), 7, 0, at) for at in range(20)]

    async def work(replica: Any) -> None:
        tokens: list[int] = []
        victim = replica._instance.pid
        async for part in replica.generate(submit(known=[expected[:4]])):
            message = told.decode(part)
            tokens += [token for delta in message.deltas for token in delta.tokens]
            if tokens and victim == replica._instance.pid:
                os.kill(replica._instance.pid, signal.SIGKILL)
        assert tokens == expected[4:] and message.restarts == 1

    with_replica(work, step_seconds=0.05)


def test_what_the_engine_refuses_is_told(engine_path: None) -> None:
    async def work(replica: Any) -> None:
        tokens, last = await taken(replica, submit(prompt=[VOCABULARY]))
        assert not tokens and last.problem[0] == "invalid_value"
        assert "not a token id" in last.problem[1]

    with_replica(work)


def test_an_engine_that_hangs_is_replaced_in_its_replica(engine_path: None, tmp_path: Path) -> None:
    expected = [token_of(tuple(PROMPT), 7, 0, at) for at in range(20)]
    hang = tmp_path / "hang"

    async def work(replica: Any) -> None:
        hang.touch()
        tokens, last = await taken(replica, submit())
        assert tokens == expected and last.restarts == 1 and not hang.exists()
        await replica.check_health()

    with_replica(work, hang=str(hang), hang_seconds=1.5)


def test_engines_that_die_at_once_fail_the_health_check(engine_path: None, tmp_path: Path) -> None:
    dies = tmp_path / "dies"

    async def work(replica: Any) -> None:
        await replica.check_health()
        dies.touch()
        os.kill(replica._instance.pid, signal.SIGKILL)
        end = time.monotonic() + 60
        with pytest.raises(RuntimeError, match="engines died without a request"):
            while time.monotonic() < end:
                await replica.check_health()
                await asyncio.sleep(0.05)

    with_replica(work, dies=str(dies))


def test_a_silent_request_says_that_the_engine_lives(engine_path: None, tmp_path: Any) -> None:
    hold = tmp_path / "hold"
    hold.touch()

    async def work(replica: Any) -> None:
        beats = 0
        async for part in replica.generate(submit()):
            beats += not told.decode(part).deltas
            if beats == 3:
                hold.unlink(missing_ok=True)
        assert beats >= 3

    with_replica(work, hold=str(hold))


def test_an_engine_that_cannot_start_is_an_input_error(engine_path: None) -> None:
    async def work(replica: Any) -> None: ...

    with pytest.raises(InputError, match="the model 'none' cannot be used"):
        with_replica(work, fail="none")
