"""Bodies of requests while they come: their size and their time have an end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

from starlette.types import Message, Receive

from suffice.serve.errors import Problem
from suffice.serve.http.heads import PATIENCE

SHORT_PATIENCE = 0.2  # seconds, of a server that stops


class Bodies:
    """Those that have not come to their end.

    Attributes:
        stopped: Whether the server stops, so that nobody waits for a body any more.
    """

    def __init__(self, most_bytes: int, seconds: float) -> None:
        self.most_bytes, self.seconds = most_bytes, seconds
        self.stopped = False
        self._waits: set[Wait] = set()

    def check(self, length: int) -> None:
        """Check a number of bytes, announced or received.

        Raises:
            Problem: They are too many.
        """
        if length > self.most_bytes:
            message = f"the body has more than {self.most_bytes} bytes, the most allowed"
            raise Problem("too_large", message)

    def stop(self) -> None:
        """Refuse the requests whose bodies have not come, now and later."""
        self.stopped = True
        for wait in list(self._waits):
            wait.end(stopping)

    async def next(self, receive: Receive, end: float) -> Message:
        """Return the next message if it comes before a time of the loop's clock.

        `asyncio.wait_for` makes a task of each wait (before Python 3.12), which takes longer.

        Raises:
            Problem: It did not come, or the server stops.
        """
        if self.stopped:
            raise stopping()
        wait = Wait()
        timer = asyncio.get_running_loop().call_at(end, wait.end, self._late)
        self._waits.add(wait)
        try:
            return await receive()
        except asyncio.CancelledError:
            if wait.why is None:
                raise
            if sys.version_info >= (3, 11):
                wait.task.uncancel()
            raise wait.why() from None
        finally:
            timer.cancel()
            self._waits.discard(wait)

    def _late(self) -> Problem:
        return Problem("timeout", f"the body took longer than {self.seconds:g} seconds")


class Wait:
    """The wait of the task that makes it, which others may end; `why` makes the error then."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "made by a task"
        self.task = task
        self.why: Callable[[], Problem] | None = None

    def end(self, why: Callable[[], Problem]) -> None:
        """End it with an error."""
        if self.why is None and self.task.cancel():
            self.why = why


class Body:
    """The body of one request; it has begun to come when this is made.

    Attributes:
        ended: Whether all of it has come, or its client has left.
    """

    def __init__(self, bodies: Bodies, receive: Receive) -> None:
        self._bodies, self._receive = bodies, receive
        self._bytes = 0
        self._end = asyncio.get_running_loop().time() + bodies.seconds
        self.ended = False

    async def receive(self) -> Message:
        """Return its next part, and after its end what the client does.

        Raises:
            Problem: It is too large or too late, or the server stops.
        """
        if self.ended:
            return await self._receive()
        message = await self._bodies.next(self._receive, self._end)
        self._note(message)
        self._bodies.check(self._bytes)
        return message

    async def discard(self) -> None:
        """Read what the client still sends, for a while (see `http`)."""

        async def rest() -> None:
            while not self.ended:
                self._note(await self._receive())

        patience = SHORT_PATIENCE if self._bodies.stopped else PATIENCE
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(rest(), patience)

    def _note(self, message: Message) -> None:
        self._bytes += len(message.get("body", b""))
        self.ended = message["type"] != "http.request" or not message.get("more_body", False)


async def left(receive: Receive) -> None:
    """Return when a client whose request has come leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


def cancelled() -> Problem:
    """Return the error of requests that were ended by their ids."""
    return Problem("cancelled", "the request was cancelled")


def stopping() -> Problem:
    """Return the error of requests that come too late."""
    return Problem("draining", "the server is shutting down", wait=5.0)
