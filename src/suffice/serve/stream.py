"""Server-sent events: frames with little work per token, and the response that sends them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from suffice.serve.errors import Problem
from suffice.serve.front import Front, Job
from suffice.serve.guard import DIRECT

BODY = "http.response.body"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # or nginx holds the stream back
}
_encode = msgspec.json.encode


def event(body: Any, name: str | None = None) -> bytes:
    """Return an object as an event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _encode(body) + b"\n\n"


class Frames:
    """The chunks of one stream. What all of them share is encoded once."""

    def __init__(self, head: Mapping[str, Any], *, chat: bool) -> None:
        self._head = _encode(head)[:-1] + b',"choices":[{"index":'
        self._open = b',"delta":{"content":' if chat else b',"text":'
        self._close = b"}" if chat else b""
        self._bare = _encode(head)[:-1]

    def text(self, index: int, text: str) -> bytes:
        """Return a chunk with some text and nothing else: the path of most tokens."""
        return (
            b"data: %b%d%b%b%b" % (self._head, index, self._open, _encode(text), self._close)
            + b',"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def choice(self, choice: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> bytes:
        """Return a chunk with one choice, and further fields."""
        return self.chunk([choice], more)

    def chunk(self, choices: list[Any], more: Mapping[str, Any] | None = None) -> bytes:
        """Return a chunk with some choices, and further fields."""
        rest = b"" if not more else b"," + _encode(more)[1:-1]
        return b'data: %b,"choices":%b%b}\n\n' % (self._bare, _encode(choices), rest)


class EventStream(Response):
    """Sends events as they come; ends the request's work if the client leaves or reads nothing.

    The status is sent with the first event, so that a request that fails before it has a status.
    """

    def __init__(
        self,
        front: Front,
        job: Job,
        events: AsyncIterator[bytes],
        last: bytes = DONE,
        failed: Callable[[Problem], bytes] = lambda problem: event(problem.body()),
    ) -> None:
        self._front, self._job, self._events, self._last = front, job, events, last
        self._failed = failed
        self.status_code = 200
        self.background = None
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        job = self._job
        job.task = asyncio.current_task()
        listener = asyncio.create_task(cancel_on_disconnect(job, receive))
        direct = scope[DIRECT]
        try:
            try:
                async for part in self._events:
                    if self._started:  # the path of every token
                        job.writing_since = time.monotonic()
                        await direct({"type": BODY, "body": part, "more_body": True})
                        job.writing_since = None
                    else:
                        await self._send(send, part)
            except Problem as problem:
                if not self._started:
                    raise
                await self._send(send, self._failed(problem) + self._last)
            else:
                if self._last:
                    await self._send(send, self._last)
            await send({"type": BODY, "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not job.gone:
                raise
        finally:
            listener.cancel()
            self._front.finish(job)

    async def _send(self, send: Send, part: bytes) -> None:
        job = self._job
        job.writing_since = time.monotonic()
        if not self._started:
            self._started = True
            headers = {**HEADERS, "x-request-id": job.id}
            raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": BODY, "body": part, "more_body": True})
        job.writing_since = None


async def cancel_on_disconnect(job: Job, receive: Receive) -> None:
    """End a request's work when its client leaves."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
    job.abandon()
