"""The engines of a server: one, or several that share its requests.

When an engine dies, its requests go on in another one that is there, or else in the next one.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from suffice.attention.rule import weakest
from suffice.engine.steps import STEP_SECONDS
from suffice.engine.work import Delta, EngineStats, Look
from suffice.serve.processes import wire
from suffice.serve.processes.metrics import Watched
from suffice.serve.processes.pending import Observer, Ticket, Tickets
from suffice.serve.processes.router import Load, Rates, Router
from suffice.serve.settings import Settings

_TIMES = ("last_step_at", "token_seconds", "step_seconds", "row_seconds")


class Member(Protocol):
    """What a fleet needs of an engine; `Instance` says what each part is."""

    facts: wire.Facts | None
    tickets: Tickets
    gone: str | None
    seen: Callable[[Look], None]
    stepped: Callable[[list[int]], None]
    left: Callable[[list[Ticket]], None]
    back: Callable[[], None]

    @property
    def stats(self) -> dict[str, Any]:
        """The last counts."""

    @property
    def past(self) -> Mapping[str, float]:
        """The sums of the last counts of engines that died."""

    @property
    def restarts(self) -> int:
        """How many those are."""

    @property
    def failovers(self) -> int:
        """Requests that went on in it after another died."""

    async def start(self) -> None:
        """Start, and wait until it is ready."""

    async def close(self) -> None:
        """Stop."""

    @property
    def ready(self) -> bool:
        """Whether it takes requests at once."""

    @property
    def usable(self) -> bool:
        """Whether it does and is healthy."""

    def ailment(self) -> str | None:
        """Return why it is not healthy."""

    def watch(self, on: bool) -> None:
        """Have looks sent to `seen`, or no more."""

    def submit(self, ticket: Ticket) -> None:
        """Take a ticket, which another may have begun."""

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket."""


class Fleet:
    """Engines behind one face; the event loop's thread alone uses it.

    Attributes:
        members: The engines.
        seen: Takes looks at all engines together; see `watch`.
    """

    members: Sequence[Member]

    def __init__(self, settings: Settings, observe: Observer) -> None:
        """Have the engines made by `_hired`."""
        self._settings, self._observe = settings, observe
        self.members = self._hired()
        self.seen: Callable[[Look], None] = lambda look: None
        step_seconds = settings.limits.get("step_ms", 1000 * STEP_SECONDS) / 1000
        on_disk = settings.options.get("prefix_dir") is not None
        self._router = Router(len(self.members), settings.max_num_seqs, step_seconds, on_disk)
        self._looks: dict[int, Look] = {}
        self._rates: list[tuple[Any, Rates | None]] = [(None, None)] * len(self.members)
        for at, member in enumerate(self.members):
            member.seen = partial(self._saw, at)
            member.left = partial(self._moved, at)
            member.back = partial(self._filled, at)

    def _hired(self) -> Sequence[Member]:
        """Return the engines, which tell `_observed` of each delta."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the engines and wait until all are ready.

        Raises:
            Problem: One died before it was ready.
        """
        await asyncio.gather(*(member.start() for member in self.members))

    async def close(self) -> None:
        """Stop the engines."""
        await asyncio.gather(*(member.close() for member in self.members))

    def renew(self) -> None:
        """Replace the engines by new ones, unless others than the server keep them."""

    @property
    def facts(self) -> wire.Facts | None:
        """What the engines, which are all alike, said of their model; None before the first."""
        return next((member.facts for member in self.members if member.facts is not None), None)

    @property
    def engines(self) -> Mapping[str, Watched]:
        """What metrics show, by the engines' names: their numbers."""
        return {str(at): member for at, member in enumerate(self.members)}

    @property
    def stats(self) -> dict[str, Any]:
        """The sums of the engines' last counts."""
        return summed(member.stats for member in self.members)

    @property
    def restarts(self) -> int:
        """Engines that died."""
        return sum(member.restarts for member in self.members)

    @property
    def failovers(self) -> int:
        """Requests that went on in another engine."""
        return sum(member.failovers for member in self.members)

    @property
    def tickets(self) -> dict[str, Ticket]:
        """What is under way, by id."""
        return {name: each for member in self.members for name, each in member.tickets.items()}

    @property
    def ready(self) -> bool:
        """Whether an engine is there to take requests at once."""
        return any(member.usable for member in self.members)

    def ailment(self) -> str | None:
        """Return why an engine is not healthy, in a line; None if all are."""
        for at, member in enumerate(self.members):
            if (found := member.ailment()) is not None:
                return found if len(self.members) == 1 else f"engine {at}: {found}"
        return None

    @property
    def gone(self) -> str | None:
        """Why no engine can be kept alive; None if one can."""
        reasons = [member.gone for member in self.members]
        return reasons[0] if all(reasons) else None

    def watch(self, on: bool) -> None:
        """Have looks at the engines sent to `seen`, or no more."""
        self._looks.clear()
        for member in self.members:
            member.watch(on)

    def submit(self, ticket: Ticket) -> None:
        """Hand a ticket to the engine that will begin it first, or to the next one to come."""
        ticket.engine = self._choice(ticket)
        self.members[ticket.engine].submit(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket and have its engine end it; do nothing if it is over."""
        for member in self.members:
            member.cancel(ticket)

    def _choice(self, ticket: Ticket) -> int:
        if len(self.members) == 1:
            return 0
        open_ = [member.usable for member in self.members]
        some = any(open_)
        loads = [
            load_of(member.tickets, ticket.work, self._rates_of(at)) if free or not some else None
            for at, (member, free) in enumerate(zip(self.members, open_, strict=True))
        ]
        return self._router.choose(ticket.work, loads)

    def _rates_of(self, at: int) -> Rates | None:
        """Return how fast an engine is, by its last counts."""
        stats = self.members[at].stats
        if self._rates[at][0] is not stats:
            self._rates[at] = stats, rates_of(stats)
        return self._rates[at][1]

    def _observed(self, ticket: Ticket, delta: Delta, now: float) -> None:
        self._observe(ticket, delta, now)
        if delta.final is not None and len(self.members) > 1:
            for at, member in enumerate(self.members):
                if ticket.work.id in member.tickets:
                    self._router.keep(at, ticket.work, [*ticket.emitted[0], *delta.tokens])

    def _moved(self, at: int, tickets: list[Ticket]) -> None:
        """Let the tickets of an engine that died go on in others, if any is there."""
        self._router.forget(at)
        self._looks.pop(at, None)
        if self.ready:
            self._move(self.members[at], tickets)

    def _filled(self, at: int) -> None:
        """Give an engine that is ready what waits for others that are not."""
        for member in self.members:
            if not member.ready:
                self._move(member, list(member.tickets.values()))

    def _move(self, source: Member, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            target = self._choice(ticket)
            if self.members[target] is not source:
                del source.tickets[ticket.work.id]
                ticket.engine = target
                self.members[target].submit(ticket)

    def _saw(self, at: int, look: Look) -> None:
        self._looks[at] = look
        self.seen(together(list(self._looks.values())))


def load_of(tickets: Tickets, work: wire.Submit, rates: Rates | None = None) -> Load:
    """Return what an engine has to do for its tickets before another one's work, and with it.

    Prompts of a lower priority come later. Engines share their time between API keys: while the
    work's own key gets as far as the work, each other key gets as many tokens, or all that it has.
    """
    if not tickets.waiting:
        return Load(0, tickets.samples, rates)
    waiting: dict[str, int] = {}
    for (priority, key), tokens in tickets.waiting.items():
        if priority <= work.priority:
            waiting[key] = waiting.get(key, 0) + tokens
    ahead = own = waiting.pop(work.key, 0)
    if waiting:
        turn = own + len(work.prompt)
        ahead += sum(min(tokens, turn) for tokens in waiting.values())
    return Load(ahead, tickets.samples, rates)


def rates_of(stats: Mapping[str, float]) -> Rates | None:
    """Return how fast an engine is, by its counts; None before it has run prompts and steps."""
    names = ("token_seconds", "step_seconds", "row_seconds")
    token, step, row = (float(stats.get(name, 0)) for name in names)
    return Rates(token, step, row) if token and step + row else None


def summed(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of counts by name; of times, the latest or longest."""
    found: dict[str, Any] = {}
    for each in counts:
        for name, value in each.items():
            held = found.get(name, 0)
            found[name] = max(held, value) if name in _TIMES else held + value
    return found


def together(looks: list[Look]) -> Look:
    """Return looks at several engines as one: counts and grids are added up.

    The audit is that of the engine that audited most: percentiles cannot be added.
    """
    if len(looks) == 1:
        return looks[0]

    def grid(name: str) -> list[list[int]]:
        rows = zip(*(getattr(look, name) for look in looks), strict=True)
        return [[sum(cells) for cells in zip(*row, strict=True)] for row in rows]

    audits = [look.audit for look in looks if look.audit is not None]
    known = {look.guarantee for look in looks if look.guarantee is not None}
    return Look(
        EngineStats(**summed(dataclasses.asdict(look.stats) for look in looks)),
        grid("key_rows"),
        grid("value_rows"),
        grid("rows_held"),
        guarantee=weakest(known) if known else None,
        missing=max(look.missing for look in looks),
        audit=max(audits, key=lambda audit: int(audit["tokens"]), default=None),
    )
