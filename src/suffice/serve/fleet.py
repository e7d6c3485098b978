"""The engines of a server: one, or several that share its requests.

When an engine dies, its requests go on in another one that is there, or else in the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from suffice.attention.rule import weakest
from suffice.engine.steps import STEP_SECONDS
from suffice.engine.work import Delta, EngineStats, Look
from suffice.errors import InputError, one_line
from suffice.models.files import fingerprint, locate
from suffice.models.shelf import has_huge_pages
from suffice.pull import resolve
from suffice.serve import wire
from suffice.serve.cores import lease
from suffice.serve.instances import Instance
from suffice.serve.life import Weights, sharing
from suffice.serve.pending import Observer, Ticket
from suffice.serve.router import Load, Rates, Router
from suffice.serve.settings import Settings

Files = tuple[tuple[str, int, int, int], ...]  # name, bytes, time of change, number
_TIMES = ("last_step_at", "token_seconds", "step_seconds", "row_seconds")
LOG = logging.getLogger("suffice.serve")
NO_HUGE_PAGES = (
    "weights are shared in small pages, which are slower to read: allow huge ones by "
    "`echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`, or give --no-share-weights"
)


class Fleet:
    """Instances behind one face; the event loop's thread alone uses it.

    Attributes:
        members: The instances.
        seen: Takes looks at all engines together; see `watch`.
    """

    def __init__(self, settings: Settings, observe: Observer) -> None:
        """Prepare the instances.

        Raises:
            InputError: There are fewer cores than instances or their threads, or weights cannot be
                shared.
        """
        count = settings.instances
        self._leases = lease(count, settings.options.get("threads"))
        for note in self._leases.notes:
            LOG.warning("%s", note)
        own = self._leases.shares
        self.members = [Instance(settings, self._observed, share) for share in own]
        self._model = settings.options.get("model")
        self._path: Path | None = None  # of the model
        self._files: Files = ()
        if sharing(settings.share_weights, count):
            if not has_huge_pages():
                LOG.warning(NO_HUGE_PAGES)
            by_node = {share.node: Weights() for share in own}
            for member in self.members:
                member.weights = by_node[member.node]
        self._known = self._weights()
        self.seen: Callable[[Look], None] = lambda look: None
        self._observe = observe
        step_seconds = settings.limits.get("step_ms", 1000 * STEP_SECONDS) / 1000
        self._router = Router(len(self.members), settings.max_num_seqs, step_seconds)
        self._looks: dict[int, Look] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._again = False
        for at, member in enumerate(self.members):
            member.seen = partial(self._saw, at)
            member.left = partial(self._moved, at)
            member.back = partial(self._filled, at)

    async def start(self) -> None:
        """Start the engines and wait until all are ready.

        Raises:
            InputError: Their options are bad.
            Problem: One died before it was ready.
        """
        await asyncio.gather(self._find(), *(member.start() for member in self.members))

    async def _find(self) -> None:
        """Note where the model's files are, and what they look like."""
        if self._known and self._model is not None:
            with contextlib.suppress(InputError):  # the engines say what is wrong
                self._path = await asyncio.to_thread(lambda: locate(resolve(str(self._model))))
                self._files = files_of(self._path)

    async def close(self) -> None:
        """Stop the engines."""
        if self._renewing is not None:
            self._renewing.cancel()
        await asyncio.gather(*(member.close() for member in self.members))
        for each in self._weights():
            each.close()
        self._leases.close()

    def renew(self) -> None:
        """Replace the engines by new ones, one after the other; requests go on in these.

        If that is under way already, it is done once more after that.
        """
        if self._renewing is not None and not self._renewing.done():
            self._again = True
            LOG.warning("the engines are being replaced: that is done once more after this")
            return
        self._renewing = asyncio.create_task(self._renew_all())

    async def _renew_all(self) -> None:
        self._again = True
        while self._again:
            self._again = False
            fresh = await self._reloaded()
            for at, member in enumerate(self.members):
                before = member.weights
                member.weights = fresh.get(member.node, before)
                if not await member.renew():
                    member.weights = before
                    LOG.error("engine %d was not replaced: the old ones go on from there", at)
                    break
            else:
                LOG.warning("%d engines were replaced by new ones", len(self.members))
            used = self._weights()
            for each in (self._known | set(fresh.values())) - used:
                each.close()
            self._known = used

    async def _reloaded(self) -> dict[int, Weights]:
        """Return, for each node, where engines load the model's files again if these have changed.

        Files of another model are not loaded: texts that have begun go on with what began them.
        """
        if self._path is None or (files := files_of(self._path)) == self._files:
            return {}
        try:
            stamp = await asyncio.to_thread(fingerprint, self._path)
        except InputError as error:
            stamp = one_line(error)
        if self.facts is None or stamp != self.facts.stamp:
            LOG.error("the model's files are not the model that is served any more: it is kept")
            return {}
        self._files = files
        return {member.node: Weights() for member in self.members}

    def _weights(self) -> set[Weights]:
        return {member.weights for member in self.members if member.weights is not None}

    @property
    def facts(self) -> wire.Facts | None:
        """What the engines, which are all alike, said of their model; None before the first."""
        return next((member.facts for member in self.members if member.facts is not None), None)

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
        self.members[self._choice(ticket)].submit(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket and have its engine end it; do nothing if it is over."""
        for member in self.members:
            member.cancel(ticket)

    def _choice(self, ticket: Ticket) -> int:
        if len(self.members) == 1:
            return 0
        open_ = [member.usable for member in self.members]
        loads = [
            load_of(member.tickets.values(), ticket.work, rates_of(member.stats))
            if free or not any(open_)
            else None
            for member, free in zip(self.members, open_, strict=True)
        ]
        return self._router.choose(ticket.work, loads)

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

    def _move(self, source: Instance, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            target = self.members[self._choice(ticket)]
            if target is not source:
                del source.tickets[ticket.work.id]
                target.submit(ticket)

    def _saw(self, at: int, look: Look) -> None:
        self._looks[at] = look
        self.seen(together(list(self._looks.values())))


def files_of(path: Path) -> Files:
    """Return what tells that a model's files were replaced or written; nothing if they are gone."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(str(file), file.stat()) for file in files]
    except OSError:
        return ()
    return tuple((name, at.st_size, at.st_mtime_ns, at.st_ino) for name, at in found)


def load_of(tickets: Iterable[Ticket], work: wire.Submit, rates: Rates | None = None) -> Load:
    """Return what an engine has to do for some tickets before another one's work, and with it.

    Prompts of a lower priority come later. Engines share their time between API keys: while the
    work's own key gets as far as the work, each other key gets as many tokens, or all that it has.
    """
    found = list(tickets)
    waiting: Counter[str] = Counter()
    for ticket in found:
        if ticket.first_at is None and ticket.work.priority <= work.priority:
            waiting[ticket.work.key] += len(ticket.work.prompt)
    own = waiting.pop(work.key, 0)
    turn = own + len(work.prompt)
    ahead = own + sum(min(tokens, turn) for tokens in waiting.values())
    return Load(ahead, sum(ticket.samples for ticket in found), rates)


def rates_of(stats: Mapping[str, float]) -> Rates | None:
    """Return how fast an engine is, by its counts; None before it has run prompts and steps."""
    names = ("token_seconds", "step_seconds", "row_seconds")
    token, step, row = (float(stats.get(name, 0)) for name in names)
    return Rates(token, step, row) if token and step + row else None


def summed(counts: Iterable[dict[str, Any]]) -> dict[str, Any]:
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
