"""Writes to a connection, gathered: a system call costs more than the bytes that it sends."""

from __future__ import annotations

import asyncio
from typing import Any


class Gathering:
    """A transport that writes all of one turn of the event loop at once."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write bytes in the loop's next turn, with what else comes until then."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def write_eof(self) -> None:
        """Write the rest, and nothing after it."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Write the rest, and close the transport."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the transport."""
        return getattr(self._transport, name)
