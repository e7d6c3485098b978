"""Requests on their way through the engine, and the mailbox from which their answers are taken."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from suffice.engine.work import Delta, Final
from suffice.serve.errors import Problem
from suffice.serve.processes import wire

LOG = logging.getLogger("suffice.serve")
SWEEP_SECONDS = 0.25  # between two calls of `Mailbox.sweep`


@dataclass(eq=False)
class Ticket:
    """One request to the engine.

    Attributes:
        index: Its number among those of an HTTP request.
        engine: The number of the engine that has it.
        place: The number of the place that it has; -1: places are not told apart.
        replica: The name of the replica that has it, where engines are replicas of a cluster.
        emitted: Tokens that each sample has given, from which another engine goes on.
        tries: Engines that died under it since its last token; `deaths` since its start.
        blamed: Engines that it alone can have killed, since its last token.
        silent: Whether the engine that has it has given it nothing yet.
        reason: Why the sample that ended last has ended.
    """

    work: wire.Submit
    samples: int
    index: int
    mailbox: Mailbox
    engine: int = 0
    place: int = -1
    replica: str = ""
    created: float = field(default_factory=time.monotonic)
    emitted: list[list[int]] = field(default_factory=list)
    final: Final | None = None
    first_at: float | None = None
    last_at: float = 0.0
    tries: int = 0
    blamed: int = 0
    silent: bool = False
    deaths: int = 0
    reason: str = ""
    over: bool = False

    def __post_init__(self) -> None:
        self.emitted = [[] for _ in range(self.samples)]

    @property
    def ran_in(self) -> str:
        """What metrics call the engine that has it."""
        return self.replica or str(self.engine)

    @property
    def generated(self) -> int:
        """Number of tokens so far, of all samples."""
        return sum(map(len, self.emitted))

    def take(self, delta: Delta) -> None:
        """Take what a step gave.

        How far the prompt is says nothing of whether the engine will outlive it.
        """
        if delta.is_progress:
            self.mailbox.put(self, delta)
            return
        self.emitted[delta.sample].extend(delta.tokens)
        self.tries = self.blamed = 0
        if delta.finish_reason is not None:
            self.reason = delta.finish_reason
        if delta.final is not None:
            self.final = delta.final
            self.over = True
        self.mailbox.put(self, delta)


class Tickets(dict[str, Ticket]):
    """What is under way in an engine, by id, with the sums that the router asks for.

    Sums are kept as tickets come and go: with hundreds of engines, to add them up for each request
    would take longer than all else that is done for it.

    Attributes:
        samples: Samples of all tickets.
        waiting: Tokens of the prompts that have given nothing yet, by priority and API key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0
        self.waiting: Counter[tuple[int, str]] = Counter()

    def __setitem__(self, name: str, ticket: Ticket) -> None:
        self.take(name)
        super().__setitem__(name, ticket)
        self._count(ticket, 1)

    def __delitem__(self, name: str) -> None:
        self._count(self[name], -1)
        super().__delitem__(name)

    def take(self, name: str) -> Ticket | None:
        """Remove a ticket and return it; None if there is none."""
        ticket = self.get(name)
        if ticket is not None:
            del self[name]
        return ticket

    def began(self, ticket: Ticket, now: float) -> None:
        """Note when the first token of a ticket came."""
        if self.get(ticket.work.id) is ticket:
            self._wait(ticket, -1)
        ticket.first_at = now

    def _count(self, ticket: Ticket, sign: int) -> None:
        self.samples += sign * ticket.samples
        if ticket.first_at is None:
            self._wait(ticket, sign)

    def _wait(self, ticket: Ticket, sign: int) -> None:
        where = ticket.work.priority, ticket.work.key
        self.waiting[where] += sign * len(ticket.work.prompt)
        if not self.waiting[where]:
            del self.waiting[where]


class Mailbox:
    """What came for the tickets of one HTTP request and was not taken yet.

    A reader that lags gets the deltas of a sample merged. All calls are of the event loop's thread.
    `form` is the field that asks for a grammar, for errors.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.form: str | None = None
        self._deltas: dict[tuple[int, int], Delta] = {}
        self._problem: Problem | None = None
        self._wake: asyncio.Future[None] | None = None
        self._seconds = self._until = 0.0
        self._moved = False
        # Is offered each delta while a reader waits, and returns whether it wrote it: to wake a
        # task for every token would cost more than the writing.
        self.sink: Callable[[Ticket, Delta], bool] | None = None

    @property
    def open(self) -> bool:
        """Whether there is, or will be, something to take."""
        waiting = bool(self._deltas) or self._problem is not None
        return waiting or any(not ticket.over for ticket in self.tickets)

    def put(self, ticket: Ticket, delta: Delta) -> None:
        """Add a delta, or hand it to the sink."""
        if (
            self.sink is not None
            and delta.finish_reason is None
            and not self._deltas
            and self._wake is not None
            and not self._wake.done()
            and self._sunk(ticket, delta)
        ):
            self._moved = True
            return
        where = ticket.index, delta.sample
        held = self._deltas.get(where)
        self._deltas[where] = delta if held is None else merged(held, delta)
        self._notify()

    def _sunk(self, ticket: Ticket, delta: Delta) -> bool:
        """Hand a delta to the sink; an error of it ends the request, and no other's engine."""
        assert self.sink is not None
        try:
            return self.sink(ticket, delta)
        except Exception:
            LOG.exception("a stream's events could not be made")
            self.sink = None
            self.fail(Problem("internal", "an error of the server, which is in its log"))
            return True

    def fail(self, problem: Problem) -> None:
        """End the HTTP request with an error, after what came before it."""
        self._problem = self._problem or problem
        self._notify()

    async def take(self, seconds: float) -> list[tuple[Ticket, Delta]]:
        """Wait for deltas and return them; an empty list if none come for some seconds.

        `sweep` ends the wait, since a timer for every token would cost more than the wait itself.

        Raises:
            Problem: The request has failed; it is raised after the last delta.
        """
        if not self._deltas and self._problem is None:
            self._wake = asyncio.get_running_loop().create_future()
            self._seconds, self._until = seconds, time.monotonic() + seconds
            try:
                await self._wake
            finally:
                self._wake = None
        if self._deltas:
            found = [(self.tickets[at], delta) for (at, _), delta in self._deltas.items()]
            self._deltas = {}
            return found
        if self._problem is not None:
            raise self._problem
        return []

    def sweep(self, now: float) -> None:
        """End a wait whose time is up."""
        if self._moved:
            self._moved, self._until = False, now + self._seconds
        if self._wake is not None and now >= self._until:
            self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def merged(first: Delta, then: Delta) -> Delta:
    """Return two deltas of one sample as one."""
    logprobs = None
    if first.logprobs is not None or then.logprobs is not None:
        logprobs = (first.logprobs or ()) + (then.logprobs or ())
    return Delta(
        first.id,
        first.sample,
        first.text + then.text,
        first.tokens + then.tokens,
        logprobs,
        then.finish_reason,
        then.stop_reason,
        then.final,
        then.prompt_logprobs if first.prompt_logprobs is None else first.prompt_logprobs,
        then.progress or first.progress,
        then.vector,
    )


NOWHERE = Mailbox()  # of tickets that have ended: with their own they would wait for the collector
Observer = Callable[[Ticket, Delta, float], None]  # the last: when it came
