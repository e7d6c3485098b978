"""The stream of a request whose model is not loaded: it says so until the model is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from suffice.serve.errors import Problem, error_event
from suffice.serve.http.front import Front
from suffice.serve.http.stream import BODY, HEADERS, last_event

PATIENCE = 2.0  # seconds that a load may take before the stream begins, and its status with it


class LoadingStream(Response):
    """Waits for a model, then answers with the response that is made with its front.

    After some seconds the stream begins with comments, so that neither its client nor a proxy
    gives up; what is wrong with the request comes as its last event then.
    """

    def __init__(
        self,
        name: str,
        using: AbstractAsyncContextManager[Front],
        answer: Callable[[Front], Awaitable[Response]],
        every: float,
        ident: str,
    ) -> None:
        """Wait for the model called `name`, and say so again after `every` seconds.

        `ident` is the request's id.
        """
        self._comment = f": {name} is being loaded\n\n".encode()
        self._using, self._answer, self._every = using, answer, every
        self._head = {**HEADERS, "x-request-id": ident}
        self.status_code, self.background = 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the comments, then the answer."""
        told = False

        async def tell() -> None:
            nonlocal told
            await asyncio.sleep(PATIENCE)
            raw = [(name.encode(), value.encode()) for name, value in self._head.items()]
            told = True
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            while True:
                await send({"type": BODY, "body": self._comment, "more_body": True})
                await asyncio.sleep(self._every)

        refused = False

        async def rest(message: Message) -> None:
            nonlocal refused
            if not told:
                await send(message)
            elif message["type"] == "http.response.start":
                refused = message["status"] != 200
            elif refused:
                end = error_event(scope, message["body"]) + last_event(scope)
                await send({**message, "body": end})
            else:
                await send(message)

        telling = asyncio.create_task(tell())
        try:
            async with self._using as front:
                await _end(telling)
                response = await self._answer(front)
                await response(scope, receive, rest)
        except Problem as problem:
            await _end(telling)
            if not told:
                raise
            end = problem.event(scope) + last_event(scope)
            await send({"type": BODY, "body": end, "more_body": False})
        finally:
            telling.cancel()


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
