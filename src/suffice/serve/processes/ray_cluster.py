"""The engines of a Ray cluster as one engine of a front.

A request is a stream of some replica. When the replica or its node dies, the request goes on in
another one from the tokens that it has, and the client sees nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from suffice.engine.work import Look
from suffice.serve.errors import Problem
from suffice.serve.processes import wire
from suffice.serve.processes.blame import MOST_BLAMED
from suffice.serve.processes.fleet import Fleet, summed
from suffice.serve.processes.metrics import Watched
from suffice.serve.processes.pending import Observer, Ticket, Tickets
from suffice.serve.processes.ray_engine import Told, encode, told
from suffice.serve.settings import Settings

LOG = logging.getLogger("suffice.serve")
LOST = (RayError, RayServeException, asyncio.TimeoutError)  # what the end of a replica looks like
NO_REPLICA = "none"  # what metrics call the engine of a request that no replica has had
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds before a request is sent to another replica

session: ContextVar[str] = ContextVar("session", default="")  # of the request that a task answers


@dataclass
class Replica:
    """What a replica has told of its engine.

    Attributes:
        told: Its last counts.
        lost: Whether it is gone, as it seems.
        failovers: Requests that went on in it after another died.
    """

    told: Told
    lost: bool = False
    failovers: int = 0

    @property
    def stats(self) -> dict[str, Any]:
        """The engine's last counts; none once it is gone."""
        return {} if self.lost else self.told.stats

    @property
    def past(self) -> dict[str, float]:
        """The sums of the last counts of engines that died."""
        return summed([self.told.past, self.told.stats]) if self.lost else self.told.past

    @property
    def restarts(self) -> int:
        """How many those are."""
        return self.told.restarts + self.lost


class Cluster:
    """As `Instance`: hands tickets to replicas, and deltas to tickets; of one event loop.

    Attributes:
        replicas: All that have ever given a request something, by Ray's names.
    """

    def __init__(self, handle: Any, settings: Settings, observe: Observer) -> None:
        self.facts: wire.Facts | None = None
        self.tickets = Tickets()
        self.gone: str | None = None
        self.seen: Callable[[Look], None] = lambda look: None
        self.stepped: Callable[[list[int]], None] = lambda tokens: None
        self.left: Callable[[list[Ticket]], None] = lambda tickets: None
        self.back: Callable[[], None] = lambda: None
        self._handle, self._settings, self._observe = handle, settings, observe
        self.replicas: dict[str, Replica] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Wait until a replica is ready.

        Raises:
            RayServeException: None will be: the engine cannot be started.
        """
        raw = await self._handle.facts.remote()
        facts = wire.read_up(raw[wire.LENGTH.size :])
        assert isinstance(facts, wire.Facts)
        self.facts = facts

    async def close(self) -> None:
        """End all requests."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def stats(self) -> dict[str, Any]:
        """The sums of the replicas' last counts."""
        return summed(each.stats for each in self.replicas.values())

    @property
    def past(self) -> dict[str, float]:
        """The sums of the last counts of engines that died, on nodes that live and on others."""
        return summed(each.past for each in self.replicas.values())

    @property
    def restarts(self) -> int:
        """How many those are."""
        return sum(each.restarts for each in self.replicas.values())

    @property
    def failovers(self) -> int:
        """Requests that went on in another replica."""
        return sum(each.failovers for each in self.replicas.values())

    @property
    def ready(self) -> bool:
        """Whether a replica has been there: requests wait for the next one."""
        return self.facts is not None

    @property
    def usable(self) -> bool:
        """As `ready`: Ray watches the replicas."""
        return self.ready

    def ailment(self) -> str | None:
        """Return None: Ray watches the replicas."""
        return None

    def watch(self, on: bool) -> None:
        """Do nothing: replicas send no looks."""

    def submit(self, ticket: Ticket) -> None:
        """Send a ticket to the replica of its session, or to one that has little to do."""
        ticket.replica = NO_REPLICA
        self.tickets[ticket.work.id] = ticket
        task = asyncio.create_task(self._run(ticket, session.get()))
        self._tasks[ticket.work.id] = task
        task.add_done_callback(lambda task: self._ended(ticket, task))

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket and end its stream; do nothing if it is over."""
        if self.tickets.take(ticket.work.id) is not None:
            ticket.over = True
            self._tasks[ticket.work.id].cancel()

    def _ended(self, ticket: Ticket, task: asyncio.Task[None]) -> None:
        del self._tasks[ticket.work.id]
        self.tickets.take(ticket.work.id)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("request %s", ticket.work.id, exc_info=error)
            ticket.over = True
            ticket.mailbox.fail(Problem("internal", "an error of the server"))

    async def _run(self, ticket: Ticket, affinity: str) -> None:
        """Have a ticket answered, by one replica after another until it is over."""
        pause = FIRST_PAUSE
        while not ticket.over:
            begun = ticket.last_at
            try:
                await self._stream(ticket, affinity)
            except LOST as error:
                LOG.warning("request %s lost its engine: %s", ticket.work.id, type(error).__name__)
                pause = FIRST_PAUSE if ticket.last_at > begun else min(2 * pause, LONGEST_PAUSE)
                if ticket.tries >= MOST_BLAMED:
                    lost = f"the engine died {ticket.tries} times while it ran this request"
                    ticket.over = True
                    ticket.mailbox.fail(Problem("engine_lost", lost))
                    return
                await asyncio.sleep(pause)

    async def _stream(self, ticket: Ticket, affinity: str) -> None:
        known = ticket.emitted if ticket.generated else []
        work = msgspec.structs.replace(ticket.work, known=known)
        options = {"session_id": affinity} if affinity else {}
        stream = self._handle.options(stream=True, **options).generate.remote(encode(work))
        engine = None
        try:
            # Until it has begun, it may wait for a place, as long as it takes.
            part = await anext(stream)
            while True:
                message = told.decode(part)
                if message.engine:
                    self._note(message, ticket, first=engine is None)
                    engine = message.engine
                if message.problem is not None:
                    raise refused(*message.problem)
                self._deliver(ticket, message)
                if ticket.over:
                    return
                part = await asyncio.wait_for(anext(stream), self._settings.heartbeat_seconds)
        except StopAsyncIteration:
            raise RayServeException("the stream ended before the request") from None
        except Problem as problem:
            ticket.over = True
            ticket.mailbox.fail(problem)
        except LOST as error:
            if engine is not None or isinstance(error, RayTaskError):  # the request may be why
                ticket.tries += 1
                ticket.deaths += 1
                if engine in self.replicas:
                    self.replicas[engine].lost = True
            raise
        finally:
            if not ticket.over or ticket.final is None:
                with contextlib.suppress(*LOST):
                    stream.cancel()

    def _note(self, message: Told, ticket: Ticket, *, first: bool) -> None:
        """Note a replica's counts, and with the first message of a stream who has the ticket."""
        replica = self.replicas.setdefault(message.engine, Replica(message))
        replica.told, replica.lost = message, False
        if first:
            ticket.replica = message.engine
            replica.failovers += ticket.deaths > 0

    def _deliver(self, ticket: Ticket, message: Told) -> None:
        now = time.monotonic()
        for delta in message.deltas:
            if delta.is_progress:
                ticket.take(delta)
                continue
            self._observe(ticket, delta, now)
            ticket.last_at = now
            if ticket.first_at is None:
                self.tickets.began(ticket, now)
            ticket.take(delta)


def refused(code: str, text: str, wait: float | None) -> Exception:
    """Return what a replica's refusal is: of the request, or of an engine that takes no more."""
    return RayServeException(text) if code == "draining" else Problem(code, text, wait=wait)


def joined(handle: Any) -> Callable[[Settings, Observer], Fleet]:
    """Return the fleet of a front, whose one engine is the cluster behind a handle."""

    class ClusterFleet(Fleet):
        @property
        def engines(self) -> Mapping[str, Watched]:
            (cluster,) = self.members
            assert isinstance(cluster, Cluster), "it has been hired below"
            return cluster.replicas

        def _hired(self) -> list[Cluster]:
            return [Cluster(handle, self._settings, self._observed)]

    return ClusterFleet
