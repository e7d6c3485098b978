"""HTTP as uvicorn reads it, with limits for a request's head (its parser has none), errors as JSON.

A path with its query has a limit (414: RFC 9110, 15.5.15), and so have all header and trailer lines
together (431: RFC 6585, 5), whether they come at once or byte by byte. What has not come to the
end of its line, so that nothing of it is parsed, has a limit as well.

A connection whose request was refused is read for a while before it is closed (RFC 9112, 9.6): a
socket that is closed with unread bytes is reset, and a reset may overtake the answer.

A request may offer to go on in another protocol: some clients offer HTTP/2 with every first
request. The server goes on in HTTP/1.1, as it may. To the parser the body of such a request is
already of the other protocol, so the request's head is read again without the offer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from suffice.serve.errors import Problem
from suffice.serve.processes.gathering import Gathering

MOST_PATH_BYTES = 16 << 10  # of a request's path with its query
MOST_HEADER_BYTES = 64 << 10  # of all names and values, and `LINE_BYTES` more for each line
LINE_BYTES = 4  # of a header's line: the colon, a space and the line's end
MOST_UNPARSED = MOST_PATH_BYTES + MOST_HEADER_BYTES + (16 << 10)  # since the last byte of a body
PATIENCE = 1.0  # seconds for which a client that was refused may go on sending
_OFFER = (b"upgrade", b"http2-settings")


class Protocol(HttpToolsProtocol):
    """Ends a connection whose headers do not end, and takes no offer of another protocol."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._unparsed = 0  # bytes since the last request's end, or since the last part of a body
        self._field_bytes = 0  # of the lines that are parsed
        self._in_head = True  # not in lines behind a body
        self._fault: Problem | None = None  # of what has been read
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
        self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            invalid = Problem("invalid_http", "the request is not valid HTTP/1.1")
            self._fault = self._fault or invalid
        if self._fault is None and self._unparsed > MOST_UNPARSED:
            self._fault = headers_too_large()
        if self._fault is not None:
            self._refuse(self._fault)

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
        self._in_head, self._field_bytes = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the path."""
        super().on_url(url)
        self._check()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a line of the head; one behind a body, which is no header, is only counted."""
        self._field_bytes += len(name) + len(value) + LINE_BYTES
        self._check()
        if self._in_head:
            super().on_header(name, value)

    def _check(self) -> None:
        self._fault = self._fault or head_fault(len(self.url), self._field_bytes)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._unparsed = 0
        if self._fault is None:
            super().on_body(body)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_head = False
        if self._fault is not None:
            return
        self._offers = self.parser.should_upgrade() and any(
            name == b"upgrade" for name, _ in self.headers
        )
        if not self._offers:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request's body."""
        self._unparsed = 0
        if self._fault is None and not self._offers:
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


def field_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the bytes of headers, as the limit counts them."""
    return sum(len(name) + len(value) + LINE_BYTES for name, value in headers)


def head_fault(path: int, fields: int) -> Problem | None:
    """Return the error of a head by the bytes of its path and of its fields; None if it has none.

    That of the path comes first.
    """
    if path > MOST_PATH_BYTES:
        message = f"the path with its query has more than {MOST_PATH_BYTES} bytes"
        return Problem("uri_too_long", message)
    return headers_too_large() if fields > MOST_HEADER_BYTES else None


def headers_too_large() -> Problem:
    """Return the error of headers beyond the limit."""
    return Problem("headers_too_large", f"the headers have more than {MOST_HEADER_BYTES} bytes")
