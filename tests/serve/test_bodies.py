"""Waiting for the parts of a body."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from suffice.serve.errors import Problem
from suffice.serve.http.bodies import Bodies, Body

PART = {"type": "http.request", "body": b"ab", "more_body": True}


def waiting(seconds: float, wait: float, bodies: Bodies | None = None) -> Body:
    async def receive() -> Any:
        await asyncio.sleep(wait)
        return PART

    return Body(bodies or Bodies(3, seconds), receive)


def test_what_comes_in_time_is_returned_until_it_is_too_large() -> None:
    async def parts() -> None:
        body = waiting(20, 0)
        assert await body.receive() == PART and not body.ended
        with pytest.raises(Problem, match="more than 3 bytes"):
            await body.receive()

    asyncio.run(parts())


def test_what_comes_too_late_is_given_up() -> None:
    async def late() -> str:
        with pytest.raises(Problem, match=r"longer than 0\.01 seconds"):
            await waiting(0.01, 20).receive()
        await asyncio.sleep(0)  # the task goes on: it is not cancelled any more
        return "on"

    assert asyncio.run(late()) == "on"


def test_a_server_that_stops_waits_no_more() -> None:
    async def stopped() -> None:
        bodies = Bodies(3, 20)
        tasks = [asyncio.create_task(waiting(20, 20, bodies).receive()) for _ in range(2)]
        await asyncio.sleep(0)
        bodies.stop()
        tasks.append(asyncio.create_task(waiting(20, 20, bodies).receive()))
        for each in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(each, Problem) and each.code == "draining"

    asyncio.run(stopped())


def test_another_ones_cancellation_is_no_timeout() -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(waiting(20, 20).receive())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_all_that_still_comes_is_discarded() -> None:
    async def discarded() -> None:
        messages = iter([PART, PART, {**PART, "more_body": False}])

        async def receive() -> Any:
            return next(messages)

        body = Body(Bodies(3, 20), receive)
        await body.discard()
        assert body.ended and not [*messages]

    asyncio.run(discarded())
