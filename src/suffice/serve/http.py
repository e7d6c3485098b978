"""HTTP as uvicorn reads it, with a limit for headers (its parser has none) and errors as JSON."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from suffice.serve.errors import Problem
from suffice.serve.gathering import Gathering

MOST_HEADER_BYTES = 64 << 10  # of a request's first line and headers


class Protocol(HttpToolsProtocol):
    """Ends a connection whose headers do not end."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_bytes = 0  # since the request began; a request whose headers have ended has 0
        self._in_head = True

    def connection_made(self, transport: Any) -> None:
        """Take a connection: the head of an answer is written with its body."""
        super().connection_made(Gathering(transport))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Take bytes of a client."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEADER_BYTES:
            self._refuse(headers_too_large())

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End the count."""
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(Problem("invalid_http", "the request is not valid HTTP/1.1"))

    def _refuse(self, problem: Problem) -> None:
        body = problem.encoded()
        head = (
            f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        if not self.transport.is_closing():
            self.transport.write(head.encode() + body)
            self.transport.close()


def headers_too_large() -> Problem:
    """Return the error of headers beyond the limit."""
    return Problem("headers_too_large", f"the headers have more than {MOST_HEADER_BYTES} bytes")
