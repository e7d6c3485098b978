"""The quick path of a stream: writes without a task, and messages as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from serving import Served, events
from suffice.engine.work import Delta
from suffice.serve import wire
from suffice.serve.link import Link
from suffice.serve.pending import Mailbox, Ticket
from suffice.serve.stream import begun


def test_a_write_that_does_not_wait_needs_no_task() -> None:
    done = []

    async def write() -> None:
        done.append(1)

    assert begun(write()) is None and done == [1]


@pytest.mark.parametrize("waits", [1, 3])
def test_a_write_that_waits_goes_on_in_a_task(waits: int) -> None:
    async def run() -> list[int]:
        done, gate = [], asyncio.Event()

        async def write() -> None:
            for at in range(waits):
                done.append(at)
                await gate.wait()
                await asyncio.sleep(0)
            done.append(-1)

        rest = begun(write())
        assert rest is not None and done == [0]
        task = asyncio.ensure_future(rest)
        await asyncio.sleep(0)
        gate.set()
        await task
        return done

    assert asyncio.run(run()) == [*range(waits), -1]


def test_messages_are_taken_however_their_bytes_come() -> None:
    sent: list[wire.Up] = [wire.Beat({"running": at}, 0.5) for at in range(5)]
    data = b"".join(map(wire.frame, sent))

    async def run(size: int) -> list[wire.Up]:
        taken: list[wire.Up] = []
        link = Link(taken.append)
        for at in range(0, len(data), size):
            link.data_received(data[at : at + size])
        return taken

    for size in (1, 3, 50, len(data)):
        assert asyncio.run(run(size)) == sent


def test_what_is_no_message_ends_the_link_with_an_error() -> None:
    async def run() -> None:
        link = Link(lambda message: None)
        link.data_received(wire.LENGTH.pack(2) + b"xy")
        await link.ended

    with pytest.raises(Exception, match="MessagePack|Expected"):
        asyncio.run(run())


def test_the_sink_gets_deltas_only_while_a_reader_waits() -> None:
    def delta(text: str, end: str | None = None) -> Delta:
        return Delta("a", 0, text, (1,), None, end)

    async def run(takes: Callable[[Ticket, Delta], bool]) -> list[str]:
        mailbox = Mailbox()
        work = wire.Submit("a", [1], {})
        ticket = Ticket(work, 1, 0, mailbox)
        mailbox.tickets.append(ticket)
        mailbox.sink = takes
        ticket.take(delta("1"))  # nobody waits
        found = [each.text for _, each in await mailbox.take(9)]
        reader = asyncio.create_task(mailbox.take(9))
        await asyncio.sleep(0)
        ticket.take(delta("2"))
        ticket.take(delta("3", "stop"))  # the last is the reader's
        return [*found, *(each.text for _, each in await reader)]

    seen: list[str] = []

    def takes(ticket: Ticket, delta: Delta) -> bool:
        seen.append(delta.text)
        return True

    assert asyncio.run(run(takes)) == ["1", "3"] and seen == ["2"]
    assert asyncio.run(run(lambda ticket, delta: False)) == ["1", "23"]


def test_most_tokens_take_the_quick_path(server: Served, monkeypatch: Any) -> None:
    from suffice.serve.answer import Reply

    quick: list[bytes | None] = []
    genuine = Reply.quick

    def noted(self: Reply, ticket: Ticket, delta: Delta) -> bytes | None:
        quick.append(genuine(self, ticket, delta))
        return quick[-1]

    monkeypatch.setattr(Reply, "quick", noted)
    for fields in ({}, {"n": 3}):
        quick.clear()
        whole = server.chat(seed=4, max_tokens=30, **fields).json()["choices"]
        stream = server.chat(seed=4, max_tokens=30, stream=True, **fields)
        texts = [""] * len(whole)
        for each in events(stream)[:-1]:
            for choice in each["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        assert texts == [each["message"]["content"] for each in whole]
        assert sum(part is not None for part in quick) > 10
