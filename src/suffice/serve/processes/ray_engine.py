"""An engine as a replica of Ray Serve: its process, and a stream for each request that it runs.

The engine is a child process, as in `suffice serve`: the replica's event loop stays free to beat
and to stream, and an engine that dies is started again on its node, with its requests. It ends with
the replica's process, which Ray ends once its requests have.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from suffice.engine.work import Delta
from suffice.serve.errors import Problem
from suffice.serve.processes import wire
from suffice.serve.processes.cores import lease
from suffice.serve.processes.instances import Instance
from suffice.serve.processes.pending import SWEEP_SECONDS, Mailbox, Ticket
from suffice.serve.settings import Settings

LOG = logging.getLogger("suffice.serve")
BEAT_SECONDS = 1.0  # of silence, after which a stream says that the engine lives


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replica tells of a request.

    Attributes:
        engine: The replica's name, and with it the counts of its engine.
        past: The sums of the counts of its engines that died.
        restarts: How many those are.
        problem: Why the request is refused: code, message, seconds to wait.
    """

    deltas: list[Delta] = []
    engine: str = ""
    stats: dict[str, Any] = {}
    past: dict[str, Any] = {}
    restarts: int = 0
    problem: tuple[str, str, float | None] | None = None


encode = msgspec.msgpack.Encoder().encode
told: msgspec.msgpack.Decoder[Told] = msgspec.msgpack.Decoder(Told)
_submit: msgspec.msgpack.Decoder[wire.Submit] = msgspec.msgpack.Decoder(wire.Submit)


class EngineReplica:
    """One engine. Its methods are called by fronts, through Ray."""

    async def __init__(  # type: ignore[misc] # as Ray allows it
        self, settings: Settings, threads: int, name: str
    ) -> None:
        """Start the engine, on cores that no other engine of the machine has.

        `name` is what metrics call it.

        Raises:
            Problem: The engine died at once.
        """
        self._name = name
        self._leases = lease(1, threads)
        for note in self._leases.notes:
            LOG.warning("%s", note)
        (share,) = self._leases.shares
        self._instance = Instance(settings, lambda ticket, delta, now: None, share)
        self._open: set[Mailbox] = set()
        self._told_at = 0.0
        try:
            await self._instance.start()
        except BaseException:
            await self._instance.close()
            raise
        self._sweeper = asyncio.create_task(self._sweep())

    async def check_health(self) -> None:
        """Fail if no engine can be kept alive here: Ray then replaces this replica.

        An engine that hangs is replaced by the replica itself, once it has hung for long enough.
        """
        if (why := self._instance.failing()) is not None:
            raise RuntimeError(why)

    async def facts(self) -> bytes:
        """Return what there is to know of the model, as the engine's process says it."""
        assert self._instance.facts is not None, "it has started"
        return wire.frame(self._instance.facts)

    async def generate(self, work: bytes) -> AsyncIterator[bytes]:
        """Run a request from the tokens that are known; yield `Told` as they come."""
        submit = _submit.decode(work)
        mailbox = Mailbox()
        ticket = Ticket(submit, int(submit.params.get("n", 1)), 0, mailbox)
        if submit.known:
            ticket.emitted = [list(tokens) for tokens in submit.known]
        mailbox.tickets.append(ticket)
        self._open.add(mailbox)
        self._instance.submit(ticket)
        try:
            yield encode(self._counts([]))
            while mailbox.open:
                deltas = [delta for _, delta in await mailbox.take(BEAT_SECONDS)]
                quiet = not deltas or time.monotonic() - self._told_at > BEAT_SECONDS
                yield encode(self._counts(deltas) if quiet or ticket.over else Told(deltas))
        except Problem as problem:
            yield encode(Told(problem=(problem.code, problem.message, problem.wait)))
        finally:
            self._open.discard(mailbox)
            self._instance.cancel(ticket)

    def _counts(self, deltas: list[Delta]) -> Told:
        self._told_at = time.monotonic()
        instance = self._instance
        return Told(deltas, self._name, instance.stats, dict(instance.past), instance.restarts)

    async def _sweep(self) -> None:
        """End waits, so that a silent request says that the engine lives."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for mailbox in list(self._open):
                mailbox.sweep(now)
