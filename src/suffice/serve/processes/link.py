"""The server's end of the link to an engine's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from suffice.serve.processes import wire


class Link(asyncio.Protocol):
    """Hands each message to `take` as it comes: waking a task for it would cost more.

    `ended` is done when the link is, with the error if a message could not be read or taken.
    """

    def __init__(self, take: Callable[[wire.Up], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take the messages that are whole now."""
        data = self._rest + data
        at, size = 0, wire.LENGTH.size
        try:
            while len(data) - at >= size:
                end = at + size + wire.LENGTH.unpack_from(data, at)[0]
                if end > len(data):
                    break
                self._take(wire.read_up(data[at + size : end]))
                at = end
        except Exception as error:
            self._end(error)
            return
        self._rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error) if error else self.ended.set_result(None)
        if self._transport is not None:
            self._transport.close()
