"""The quick path of a stream: writes without a task, and messages as they come.

Also tests sample.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from serving import Served, events
from suffice.dialects.dialect import Dialect
from suffice.dialects.families import CALLS, THINKINGS
from suffice.dialects.reader import Reader
from suffice.engine.work import Delta, Final, TokenLogprob
from suffice.serve.errors import Problem
from suffice.serve.http.front import Job
from suffice.serve.http.stream import KEEP_ALIVE, begun
from suffice.serve.interfaces import messages, responses
from suffice.serve.interfaces.answer import Reply
from suffice.serve.interfaces.fields import Fields
from suffice.serve.interfaces.response_request import Responses
from suffice.serve.interfaces.response_tools import Asked
from suffice.serve.processes import wire
from suffice.serve.processes.link import Link
from suffice.serve.processes.pending import Mailbox, Ticket


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
    sent: list[wire.Up] = [wire.Beat({"running": at}, [at]) for at in range(5)]
    data = b"".join(map(wire.frame, sent))

    async def run(size: int) -> list[wire.Up]:
        taken: list[wire.Up] = []
        link = Link(taken.append)
        for at in range(0, len(data), size):
            link.data_received(data[at : at + size])
        return taken

    for size in (1, 3, 50, len(data)):
        assert asyncio.run(run(size)) == sent


def hermes() -> Reader:
    return Reader(Dialect(THINKINGS["qwen3"], CALLS["hermes"]), tools={"time": None})


def replied(
    kind: str, samples: int, top: int | None, *, idle: float = 60, reader: Any = None
) -> tuple[Any, Any, Job]:
    """Return a stream's events and its quick path, without a server, and the request."""
    job = Job("x-1", "", stamp=1)
    params = {"n": samples, "max_tokens": 9}
    job.tickets.append(Ticket(wire.Submit("x-1", [1, 2], params), samples, 0, job.mailbox))
    front: Any = SimpleNamespace(
        facts=SimpleNamespace(fingerprint="fp"),
        settings=SimpleNamespace(keep_alive_seconds=idle, store=False),
        text=SimpleNamespace(token_bytes=lambda token, text: list(text.encode())),
    )
    chat = kind != "completion"
    body = Fields(n=samples, stream=True)
    reply = Reply(front, job, body, model="m%b", chat=chat, top=top, reader=reader)
    if kind == "messages":
        parts: Any = messages._Parts(reply, {})
        return parts.events(), parts.quick, job
    if kind == "responses":
        parts = responses._Parts(reply, Responses(input="a"), Asked())
        return parts.events(), parts.quick, job
    return reply.events(), reply.quick, job


@pytest.mark.parametrize(
    ("kind", "samples", "top", "reads"),
    [
        *(("chat", samples, top, False) for samples in (1, 2) for top in (None, 0, 2)),
        *(("completion", samples, top, False) for samples in (1, 2) for top in (None, 2)),
        *((kind, 1, None, reads) for kind in ("messages", "responses") for reads in (False, True)),
        ("chat", 2, 2, True),
    ],
)
def test_the_quick_path_gives_the_same_bytes(
    kind: str, samples: int, top: int | None, reads: bool
) -> None:
    texts = ["He", 'l"l\n', "", "100 %b", "\0é😀", "\\", "end"]
    if reads:
        texts = ["<think>a", "b", "c</thi", "nk>", "d ", "e", "f"]

    def deltas() -> Iterator[Delta]:
        for at, text in enumerate(texts):
            for sample in range(samples):
                last = at == len(texts) - 1
                final = Final(2, 0, 7) if last and sample == samples - 1 else None
                entry = tuple(TokenLogprob(rank, -0.5 * rank, rank + 1, text) for rank in range(3))
                known = None if top is None else (entry,)
                end = "length" if last else None
                yield Delta("x-1", sample, text, (at,), known, end, None, final)

    async def run(quickly: bool) -> tuple[list[bytes], int]:
        events, quick, job = replied(kind, samples, top, reader=hermes if reads else None)
        found, pushed = list[bytes](), 0

        def sink(ticket: Ticket, delta: Delta) -> bool:
            nonlocal pushed
            part = quick(ticket, delta)
            if part is not None:
                pushed += 1
                found.append(part)
            return part is not None

        async def read() -> None:
            async for part in events:
                found.append(part)

        reader = asyncio.create_task(read())
        job.mailbox.sink = sink if quickly else None
        for delta in deltas():
            await asyncio.sleep(0.001)
            job.tickets[0].take(delta)
        await reader
        return found, pushed

    slow, none = asyncio.run(run(quickly=False))
    quick, pushed = asyncio.run(run(quickly=True))
    assert none == 0 and pushed == samples * (len(texts) - 2), "all but the first and the last"
    assert b"".join(quick) == b"".join(slow)


@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
@pytest.mark.parametrize(("idle", "beats"), [(60, 0), (0, 2)])
def test_the_stream_beats_at_its_interval_while_a_call_is_formed(
    kind: str, idle: float, beats: int
) -> None:
    texts = ["<tool_call>", '{"name": "time", ', '"arguments": {', "}}", "</tool_call>"]

    async def run() -> list[bytes]:
        events, _, job = replied(kind, 1, None, idle=idle, reader=hermes)
        found = list[bytes]()

        async def read() -> None:
            async for part in events:
                found.append(part)

        reader = asyncio.create_task(read())
        for at, text in enumerate(texts):
            await asyncio.sleep(0.001)
            last = at == len(texts) - 1
            final = Final(2, 0, 7) if last else None
            job.tickets[0].take(
                Delta("x-1", 0, text, (at,), None, "stop" if last else None, None, final)
            )
        await reader
        return found

    found = asyncio.run(run())
    beat = b"event: ping" if kind == "messages" else KEEP_ALIVE
    beats -= kind == "chat" and beats > 0  # its first chunk says something
    assert sum(each.startswith(beat) for each in found) == beats, found
    assert b"time" in b"".join(found)


def test_what_is_no_message_ends_the_link_with_an_error() -> None:
    async def run() -> None:
        link = Link(lambda message: None)
        link.data_received(wire.LENGTH.pack(2) + b"xy")
        await link.ended

    with pytest.raises(Exception, match="Expected"):
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
    from suffice.serve.interfaces.answer import Reply

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


def test_an_error_of_a_sink_ends_its_request_alone(logged: list[str]) -> None:
    mailbox = Mailbox()
    ticket = Ticket(wire.Submit("a", [1], {}), 1, 0, mailbox)
    mailbox.tickets.append(ticket)

    def broken(ticket: Ticket, delta: Delta) -> bool:
        raise IndexError("of a reader")

    async def run() -> None:
        waiting = asyncio.create_task(mailbox.take(60))
        await asyncio.sleep(0)
        mailbox.sink = broken
        ticket.take(Delta("a", 0, "x", (1,)))
        with pytest.raises(Problem, match="an error of the server"):
            await waiting

    asyncio.run(run())
    assert "could not be made" in logged[0]
