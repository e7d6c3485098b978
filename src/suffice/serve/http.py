"""HTTP as uvicorn reads it, with a limit for headers (its parser has none) and errors as JSON.

A connection whose request was refused is read for a while before it is closed (RFC 9112, 9.6): a
socket that is closed with unread bytes is reset, and a reset may overtake the answer.

A request may offer to go on in another protocol: some clients offer HTTP/2 with every first
request. The server goes on in HTTP/1.1, as it may. To the parser the body of such a request is
already of the other protocol, so the request's head is read again without the offer.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from suffice.serve.errors import Problem
from suffice.serve.gathering import Gathering

MOST_HEADER_BYTES = 64 << 10  # of a request's first line and headers
PATIENCE = 1.0  # seconds for which a client that was refused may go on sending
_OFFER = (b"upgrade", b"http2-settings")


class Protocol(HttpToolsProtocol):
    """Ends a connection whose headers do not end, and takes no offer of another protocol."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_bytes = 0  # since the request began; a request whose headers have ended has 0
        self._in_head = True
        self._offers = False  # the request that is read offers another protocol
        self._refused = False  # what the client sends now is not read any more
        self._closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take a connection: the head of an answer is written with its body."""
        super().connection_made(Gathering(transport))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Take bytes of a client."""
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(Problem("invalid_http", "the request is not valid HTTP/1.1"))
            return
        if self._in_head and self._head_bytes > MOST_HEADER_BYTES:
            self._refuse(headers_too_large())

    def _feed(self, data: bytes) -> None:
        parts = [memoryview(data)]
        while parts:
            part = parts.pop()
            try:
                self.parser.feed_data(part)
            except httptools.HttpParserUpgrade as reached:
                if self._offers:
                    parts += [part[reached.args[0] :], memoryview(self._head_without_offer())]
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % each for each in self.headers if each[0] not in _OFFER]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End the count."""
        self._in_head, self._head_bytes = False, 0
        self._offers = self.parser.should_upgrade() and any(
            name == b"upgrade" for name, _ in self.headers
        )
        if not self._offers:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request's body."""
        if not self._offers:
            super().on_message_complete()

    def _refuse(self, problem: Problem) -> None:
        self._refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or not cycle.more_body:
                cycle.keep_alive = False  # what came before is answered, and ends the connection
                return
            cycle.disconnected = True  # its body is what is wrong: nobody else answers it
            cycle.message_event.set()
        body = problem.encoded()
        head = (
            f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        if not self.transport.is_closing():
            self.transport.write(head.encode() + body)
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._closing = self.loop.call_later(PATIENCE, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        if self._closing is not None:
            self._closing.cancel()
        super().connection_lost(exc)


def headers_too_large() -> Problem:
    """Return the error of headers beyond the limit."""
    return Problem("headers_too_large", f"the headers have more than {MOST_HEADER_BYTES} bytes")
