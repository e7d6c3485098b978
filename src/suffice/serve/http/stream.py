"""Server-sent events: frames with little work per token, and the response that sends them."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from suffice.engine.work import Delta
from suffice.serve.errors import Problem, path_of
from suffice.serve.http.bodies import left
from suffice.serve.http.front import Front, Job
from suffice.serve.http.guard import DIRECT
from suffice.serve.processes.pending import Ticket

BODY = "http.response.body"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # or nginx holds the stream back
}
_encode = msgspec.json.encode


def last_event(scope: Scope) -> bytes:
    """Return the event that ends every stream of the API that a request is of, if one does."""
    return DONE if path_of(scope) in ("/v1/chat/completions", "/v1/completions") else b""


def event(body: Any, name: str | None = None) -> bytes:
    """Return an object as an event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _encode(body) + b"\n\n"


def reasoning(text: Any) -> dict[str, Any]:
    """Return thinking under the names that clients know: DeepSeek's, and vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}


HOLE = msgspec.Raw(b"\0")  # no JSON has this byte


class Prepared:
    """An event that is encoded once, but for the values that stand in its holes."""

    def __init__(self, body: Any, name: str | None = None) -> None:
        self._form = event(body, name).replace(b"%", b"%%").replace(b"\0", b"%b")

    def __call__(self, *values: Any) -> bytes:
        """Return the event with these values, which are in the order of the holes."""
        return self._form % tuple(map(_encode, values))


class Frames:
    """The chunks of one stream. What all of them share is encoded once."""

    def __init__(self, head: Mapping[str, Any], *, chat: bool) -> None:
        text = {"delta": {"content": HOLE}} if chat else {"text": HOLE}
        choice = {"index": HOLE, **text, "logprobs": HOLE, "finish_reason": None}
        self._text = Prepared({**head, "choices": [choice]})
        thought = {"index": HOLE, "delta": reasoning(HOLE), "logprobs": None, "finish_reason": None}
        self._thought = Prepared({**head, "choices": [thought]})
        self._bare = _encode(head)[:-1]

    def text(self, index: int, text: str, logprobs: Any = None) -> bytes:
        """Return a chunk with some text and nothing else: the path of most tokens."""
        return self._text(index, text, logprobs)

    def thought(self, index: int, text: str) -> bytes:
        """Return a chat's chunk with some thinking and nothing else."""
        return self._thought(index, text, text)

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
    `quick` makes the event of a delta that is like those before it: most are, and they are written
    as they come, without waking a task. For others it returns None.
    """

    def __init__(
        self,
        front: Front,
        job: Job,
        events: AsyncIterator[bytes],
        last: bytes = DONE,
        quick: Callable[[Ticket, Delta], bytes | None] | None = None,
        kind: str = HEADERS["content-type"],
    ) -> None:
        self._kind = kind
        self._front, self._job, self._events, self._last = front, job, events, last
        self._quick = quick
        self._direct: Send | None = None
        self._blocked: asyncio.Future[None] | None = None  # a write of `_push` that goes on
        self.status_code = 200
        self.background = None
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        job = self._job
        job.task = asyncio.current_task()
        listener = asyncio.create_task(cancel_on_disconnect(job, receive))
        self._direct = scope[DIRECT]
        if self._quick is not None:
            job.mailbox.sink = self._push
        try:
            try:
                async for part in self._events:
                    await self._send(self._direct if self._started else send, part)
            except Problem as problem:
                if not self._started:
                    raise
                await self._send(send, problem.event(scope) + self._last)
            else:
                if self._last:
                    await self._send(send, self._last)
            await send({"type": BODY, "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not job.gone:
                raise
        finally:
            job.mailbox.sink = None
            listener.cancel()
            if self._blocked is not None:
                self._blocked.cancel()
            self._front.finish(job)

    def _push(self, ticket: Ticket, delta: Delta) -> bool:
        """Write the event of a delta at once; return False if the task has to."""
        if self._blocked is not None or not self._started:
            return False
        assert self._quick is not None and self._direct is not None
        part = self._quick(ticket, delta)
        if part:
            write = self._direct({"type": BODY, "body": part, "more_body": True})
            if (wait := begun(write)) is not None:
                self._job.writing_since = time.monotonic()
                self._blocked = asyncio.ensure_future(wait)
                self._blocked.add_done_callback(self._unblock)
        return part is not None

    def _unblock(self, write: asyncio.Future[None]) -> None:
        self._blocked = self._job.writing_since = None
        if not write.cancelled() and write.exception() is not None:
            self._job.abandon()

    async def _send(self, send: Send, part: bytes) -> None:
        if self._blocked is not None:
            await self._blocked
        job = self._job
        job.writing_since = time.monotonic()
        if not self._started:
            self._started = True
            headers = {**HEADERS, "content-type": self._kind, "x-request-id": job.id}
            raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": BODY, "body": part, "more_body": True})
        job.writing_since = None


def begun(work: Awaitable[None]) -> Coroutine[Any, Any, None] | None:
    """Run a coroutine until it waits for something; return the rest of it, None if it has ended."""
    steps = work.__await__()
    try:
        first = next(steps)
    except StopIteration:
        return None

    @types.coroutine
    def others() -> Generator[Any, Any, None]:
        yield first
        yield from steps

    async def rest() -> None:
        await others()

    return rest()


async def cancel_on_disconnect(job: Job, receive: Receive) -> None:
    """End a request's work when its client leaves."""
    await left(receive)
    job.abandon()
