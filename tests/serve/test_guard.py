"""Waiting for the parts of a body."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from suffice.serve.guard import before


async def ended(seconds: float, wait: float) -> Any:
    async def receive() -> Any:
        await asyncio.sleep(wait)
        return {"type": "http.request"}

    return await before(asyncio.get_running_loop().time() + seconds, receive)


def test_what_comes_in_time_is_returned() -> None:
    assert asyncio.run(ended(20, 0)) == {"type": "http.request"}


def test_what_comes_too_late_is_given_up() -> None:
    async def late() -> str:
        with pytest.raises(asyncio.TimeoutError):
            await ended(0.01, 20)
        await asyncio.sleep(0)  # the task goes on: it is not cancelled any more
        return "on"

    assert asyncio.run(late()) == "on"


def test_another_ones_cancellation_is_no_timeout() -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(ended(20, 20))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
