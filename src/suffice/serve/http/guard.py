"""What stands before every route: keys, the body's size, and errors in one form."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Collection, Iterable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffice.serve.errors import Problem, path_of
from suffice.serve.http.bodies import Body
from suffice.serve.http.heads import field_bytes, head_fault
from suffice.serve.http.models import Models

LOG = logging.getLogger("suffice.serve")
OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/ping"})  # need no key
NOTED = "suffice.noted"  # in the scope: an error that is in the log
DIRECT = "suffice.send"  # in the scope: sends to the client, past the layers of the application
_NO_KEY = "no valid API key: send 'Authorization: Bearer KEY'"


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the API key of a request; empty if there is none."""
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip()
        if name == b"x-api-key":
            return value.strip()
    return b""


def sent_key(request: Request) -> str:
    """Return the API key of a request as text."""
    return key_of(request.scope["headers"]).decode("latin-1")


class Guard:
    """Checks the key and the body's size, and answers what no route has answered.

    Paths in `shown` need no key either.
    """

    def __init__(self, app: ASGIApp, models: Models, shown: Collection[str] = ()) -> None:
        self._app, self._models = app, models
        self._open = OPEN_PATHS.union(shown)  # they tell nothing but that the server is there
        self._keys = [key.encode() for key in models.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[DIRECT] = send
        scope["root_path"] = self._models.settings.root_path
        body = Body(self._models.bodies, receive)
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, body.receive, sending)
        except Problem as problem:
            if not started:
                await answer(send, problem, scope, body)
        except Exception as error:
            if scope.get(NOTED) is not error:  # one that is noted has been answered, too
                raise
        finally:
            del scope[DIRECT]  # or the scope and what sends would hold each other

    def _check(self, scope: Scope) -> None:
        if self._keys and path_of(scope) not in self._open and scope["method"] != "OPTIONS":
            given = key_of(scope["headers"])
            if not sum(hmac.compare_digest(given, key) for key in self._keys):  # all are compared
                raise Problem("invalid_api_key", _NO_KEY)
        target = len(scope.get("raw_path", b"")) + len(scope["query_string"])
        if (fault := head_fault(target, field_bytes(scope["headers"]))) is not None:
            raise fault
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit():
            self._models.bodies.check(int(length[:20]))


def note(scope: MutableMapping[str, Any], error: Exception) -> Problem:
    """Log an error of the server, and return what the client is told."""
    ident = os.urandom(6).hex()
    LOG.error("error %s in %s", ident, scope["path"], exc_info=error)
    scope[NOTED] = error
    return Problem("internal", f"an error of the server, noted as {ident}")


async def answer(send: Send, problem: Problem, scope: Scope, body: Body) -> None:
    """Answer with an error; a connection whose body was not read is closed, but not at once."""
    headers = {"content-type": "application/json", **problem.headers()}
    text = problem.encoded(scope)
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    raw.append((b"content-length", str(len(text)).encode()))
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": text, "more_body": problem.cuts})
    if problem.cuts:
        await body.discard()
        await send({"type": "http.response.body"})
