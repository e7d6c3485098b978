"""Writes of one turn of the event loop leave together, in their order, also before an end."""

from __future__ import annotations

import asyncio

from suffice.serve.processes.gathering import Gathering


class Transport:
    """Notes what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_what_comes_in_one_turn_is_written_once() -> None:
    async def run() -> None:
        transport = Transport()
        gathering = Gathering(transport)  # type: ignore[arg-type]
        gathering.write(b"head ")
        gathering.write(b"body")
        assert transport.written == []
        await asyncio.sleep(0)
        assert transport.written == [b"head body"]
        await asyncio.sleep(0)
        gathering.write(b"more")
        await asyncio.sleep(0)
        assert transport.written == [b"head body", b"more"]

    asyncio.run(run())


def test_the_rest_is_written_before_the_end() -> None:
    async def run() -> None:
        transport = Transport()
        gathering = Gathering(transport)  # type: ignore[arg-type]
        gathering.write(b"last")
        assert not gathering.is_closing()
        gathering.close()
        assert transport.written == [b"last"] and gathering.is_closing()
        await asyncio.sleep(0)
        assert transport.written == [b"last"]

    asyncio.run(run())
