"""An engine's process: started, watched, and started again if it dies.

Requests outlive it. Their tokens so far go to the next engine, or to another one, as known tokens;
since every request has a seed, their streams continue with the bits that they would have had.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from suffice.engine.work import Look
from suffice.serve.errors import Problem, of_engine
from suffice.serve.processes import wire
from suffice.serve.processes.blame import Blame
from suffice.serve.processes.cores import Share
from suffice.serve.processes.deaths import Deaths
from suffice.serve.processes.life import Life, Weights, first_of, launched, room_for, starter
from suffice.serve.processes.pending import Observer, Ticket, Tickets
from suffice.serve.processes.pulse import turns
from suffice.serve.settings import Settings

LOG = logging.getLogger("suffice.serve")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a dead engine is started again
_REFUSALS = {"input": "invalid_value", "busy": "queue_full", "closed": "draining"}


class Instance:
    """Hands tickets to the engine and deltas to tickets; the event loop's thread alone uses it.

    Attributes:
        facts: Of the engine that was ready last; None before the first, and while it is started.
        stats: The engine's last counts.
        past: The sums of the last counts of engines that died.
        restarts: Engines that died.
        failovers: Requests that went on in another engine.
        gone: Why no engine can be kept alive; None if one can.
        weights: Where its engines find their weights; None: each has its own.
        seen: Takes looks at the engine; see `watch`.
        stepped: Takes the numbers of tokens that the engine's steps ran.
        left: Takes the tickets of an engine that died, or none of one that was replaced; those that
            it leaves wait for the next.
        back: Is called when an engine is ready.
    """

    def __init__(self, settings: Settings, observe: Observer, share: Share | None = None) -> None:
        self.facts: wire.Facts | None = None
        self.stats: dict[str, Any] = {}
        self.past: Counter[str] = Counter()
        self.restarts = self.failovers = 0
        self.tickets = Tickets()
        self._settings = settings
        self._observe = observe
        self.seen: Callable[[Look], None] = lambda look: None
        self.stepped: Callable[[list[int]], None] = lambda tokens: None
        self.left: Callable[[list[Ticket]], None] = lambda tickets: None
        self.back: Callable[[], None] = lambda: None
        self._share = share
        self.gone: str | None = None
        self._deaths = Deaths()
        self._watched = False
        self.weights: Weights | None = None
        self._life: Life | None = None  # once it is ready
        self._current: Life | None = None  # the same, or one that is not ready yet
        self._heir: Life | None = None  # is to replace it
        self._asked: asyncio.Future[asyncio.Future[bool]] | None = None  # `renew` with its answer
        self._retiring: asyncio.Future[bool] | None = None  # of an engine that ends before the next
        self._loading: asyncio.Task[None] | None = None
        self._blame = Blame(self._hand, settings.max_num_seqs)
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        starter()  # while this process has its first priority

    async def start(self) -> None:
        """Start the engine and wait until it is ready; it may have been closed before.

        Raises:
            Problem: It died before it was ready.
        """
        self.facts = self.gone = None
        self._deaths = Deaths()
        self._started = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep())
        await self._started

    async def close(self) -> None:
        """Stop the engine."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._loading is not None:
            self._loading.cancel()
        if self._heir is not None:
            await self._heir.end()
        self._task = self._loading = self._heir = None
        self._note_end()

    @property
    def node(self) -> int:
        """The NUMA node of its cores."""
        return 0 if self._share is None else self._share.node

    @property
    def ready(self) -> bool:
        """Whether an engine is there to take requests at once."""
        return self._life is not None

    @property
    def usable(self) -> bool:
        """Whether an engine is there and healthy."""
        return self.ready and self.ailment() is None

    @property
    def pid(self) -> int | None:
        """The engine's process."""
        return None if self._life is None else self._life.process.pid

    def ailment(self) -> str | None:
        """Return why the engine is not healthy, in a line; None if it is."""
        if self._life is None:
            return self._deaths.ailment()
        return self._life.pulse.ailment(self._settings)

    def failing(self) -> str | None:
        """Return why no engine gets to work, in a line; None of one that is there."""
        return self.gone or (self._deaths.ailment() if self._life is None else None)

    def watch(self, on: bool) -> None:
        """Have looks at the engine sent to `seen`, or no more; this engine's and the next one's."""
        self._watched = on
        self._tell(wire.Watch(on))

    def submit(self, ticket: Ticket) -> None:
        """Hand a ticket to the engine, or to the next one while there is none."""
        self.tickets[ticket.work.id] = ticket
        if self._life is not None:
            self._blame.add(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket and have the engine end it; do nothing if it is over."""
        if self.tickets.take(ticket.work.id) is None:
            return
        ticket.over = True
        self._tell(wire.Cancel(ticket.work.id))
        self._blame.passed(ticket)

    def _tell(self, message: wire.Down) -> None:
        """Send a message, if there is an engine: the next one gets all that is open."""
        if self._life is not None:
            self._life.tell(message)

    def _hand(self, ticket: Ticket) -> None:
        """Send a ticket to the engine, with the tokens that others gave it."""
        known = [list(tokens) for tokens in ticket.emitted] if ticket.generated else []
        left = ticket.work.deadline  # seconds, which count from the request's arrival
        if left is not None:
            left = max(left - (time.monotonic() - ticket.created), 0.0)
        self.failovers += ticket.deaths > 0
        self._tell(msgspec.structs.replace(ticket.work, known=known, deadline=left))

    async def renew(self) -> bool:
        """Replace the engine by a new one, which goes on with its requests; return whether it did.

        False: the new engine did not become ready, and the old one goes on. An engine that is not
        ready yet is a new one.
        """
        if self._life is None or self._asked is None:
            return True
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked.set_result(answer)
        return await answer

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began, planned = time.monotonic(), False
            try:
                if self._current is None:
                    self._current = await self._launch()
                planned = await self._tend()
            except OSError as error:  # no file descriptor, no memory for a process
                LOG.error("the engine cannot be started: %s", error)
            except Exception:
                LOG.exception("the engine's message could not be taken")
            finally:
                life, self._current, self._life = self._current, None, None
                if life is not None:
                    await life.end()
            if planned:
                self._note_end()
                self.left(list(self.tickets.values()))
                continue
            lived = time.monotonic() - began
            if self._start_failed():
                return
            if life is not None:
                self._note_death(life, soon=lived < LONGEST_PAUSE)
            self._mourn()
            pause = pause if self._deaths.any else FIRST_PAUSE
            if self._heir is None:
                await asyncio.sleep(pause)
            self._current, self._heir = self._heir, None
            pause = min(2 * pause, LONGEST_PAUSE)

    def _start_failed(self) -> bool:
        """Return whether the first engine ended before it was ready, and tell `start` if so."""
        started = self._started
        assert started is not None, "`start` has been called"
        if not started.done():
            started.set_exception(Problem("engine_lost", "the engine did not start"))
        return started.cancelled() or started.exception() is not None

    async def _tend(self) -> bool:
        """Return when the engine has ended; replace it meanwhile, whenever that is asked for.

        An engine that dies while the next one loads leaves that as `_heir`. Returns whether the
        engine has to end before the next one loads, for want of memory; the answer is `_retiring`.
        """
        while True:
            life = self._current
            assert life is not None, "an engine has been launched"
            if life.ready and life is not self._life:  # since before the last one's end
                self._take_over(life)
            self._asked = asyncio.get_running_loop().create_future()
            await first_of(life.link.ended, self._asked)
            if life.link.ended.done():
                life.link.ended.result()
                return False
            answer = self._asked.result()
            if self.weights is None and not room_for(self.facts.weight_bytes if self.facts else 0):
                self._retiring = answer
                return True
            try:
                self._heir = heir = await self._launch()
            except OSError as error:
                LOG.error("the new engine cannot be started: %s", error)
                tell(answer, False)
                continue
            await first_of(life.link.ended, heir.link.ended, heir.welcomed)
            ready = not heir.link.ended.done()
            if not ready:
                self._heir = None
                await heir.end()
            elif not life.link.ended.done():
                self._current, self._heir = heir, None
                self._note_end()
                self.left([])
                self._take_over(heir)
                await life.end()
            tell(answer, ready)

    async def _launch(self) -> Life:
        settings, share, options = self._settings, self._share, dict(self._settings.options)
        if share is not None:
            options["threads"] = options.get("threads") or share.threads
        cpus = () if share is None else share.cpus
        start = wire.Start(settings.engine, options, dict(settings.limits), cpus)
        life = await launched(self._take, start, self.weights, again=self.facts is not None)
        if self.weights is None:
            life.load()
        else:
            self._loading = asyncio.create_task(self.weights.load(life))
        life.watching = asyncio.create_task(self._watch_over(life))
        return life

    def _take(self, life: Life, message: wire.Up) -> None:
        """Take a message; those of an engine that has been replaced are too late."""
        life.pulse.heard(step=self._tells_of_step(message))
        if isinstance(message, wire.Facts):
            self._welcome(life, message)
        elif isinstance(message, wire.Failed):
            self._fail(life, message)
        elif life is not self._life:
            return
        elif isinstance(message, wire.Step):
            self._deliver(message, time.monotonic())
        elif isinstance(message, wire.Beat):
            self.stats = message.stats
            self.stepped(message.step_tokens)
        elif isinstance(message, wire.Seen):
            self.seen(message.look)
        elif isinstance(message, wire.Refused):
            self._refuse(message)

    def _tells_of_step(self, message: wire.Up) -> bool:
        if isinstance(message, wire.Beat):
            return bool(message.stats["steps"] != self.stats.get("steps"))
        return isinstance(message, wire.Step)

    async def _watch_over(self, life: Life) -> None:
        """End an engine that hangs, while it loads or has the requests."""
        async for seconds in turns():
            if life is self._life:
                life.pulse.passed(seconds, busy=bool(self.tickets))
            elif life.loads and not life.ready:
                life.pulse.loads(seconds, spent=life.spent())
            if (why := life.pulse.hangs(self._settings)) is not None:
                LOG.error("the engine hangs and is ended: %s", why)
                life.process.kill()
                return

    def _fail(self, life: Life, message: wire.Failed) -> None:
        if self._started is not None and not self._started.done():
            self._started.set_exception(message.error())
        else:
            LOG.error("a new engine could not load the model: %s", message.message)

    def _welcome(self, life: Life, facts: wire.Facts) -> None:
        if self.facts is not None and facts.fingerprint != self.facts.fingerprint:
            LOG.error("the model's files are another model now: a new engine cannot go on")
            life.writer.close()
            return
        self.facts, self.gone = facts, None
        life.ready = True
        life.welcomed.set_result(None)
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        if life is not self._heir:
            self._take_over(life)

    def _take_over(self, life: Life) -> None:
        """Let an engine that is ready go on with the requests."""
        self._life = life
        if self._retiring is not None:
            tell(self._retiring, True)
            self._retiring = None
        self._blame.begin(self.tickets.values())
        if self._watched:
            self.watch(True)
        self.back()

    def _deliver(self, step: wire.Step, now: float) -> None:
        for delta in step.deltas:
            ticket = self.tickets.get(delta.id)
            if ticket is None:  # cancelled
                continue
            if delta.is_progress:
                ticket.take(delta)
                continue
            self._observe(ticket, delta, now)
            ticket.last_at = now
            if ticket.first_at is None:
                self.tickets.began(ticket, now)
            ticket.take(delta)
            if ticket.over:
                del self.tickets[delta.id]
            if ticket.silent:
                ticket.silent = False
                self._blame.passed(ticket)

    def _refuse(self, message: wire.Refused) -> None:
        ticket = self.tickets.take(message.id)
        if ticket is None:
            return
        ticket.over = True
        self._blame.passed(ticket)
        wait = message.wait if message.kind != "input" else None
        code = _REFUSALS.get(message.kind, "internal")
        form = ticket.mailbox.form
        ticket.mailbox.fail(of_engine(code, message.message, form=form, wait=wait))

    def _note_death(self, life: Life, soon: bool) -> None:
        """Count engines that died at once; those that had work may die ever so often."""
        at_once = not life.ready or (soon and not self.tickets)
        self._deaths.note(life.process.returncode, at_once=at_once)
        self.gone = self._deaths.gone()

    def _note_end(self) -> None:
        """Keep the counts of an engine that has ended."""
        self.past.update(self.stats)
        self.stats = {}

    def _mourn(self) -> None:
        """Note that the engine died, and give up the requests that it may have died of."""
        self.restarts += 1
        self._note_end()
        LOG.error("the engine died; requests that go on in another one: %d", len(self.tickets))
        for ticket in self.tickets.values():
            ticket.deaths += 1
        for ticket in self._blame.died():
            del self.tickets[ticket.work.id]
            ticket.over = True
            lost = f"the engine died {ticket.blamed} times when this request alone was to blame"
            ticket.mailbox.fail(Problem("engine_lost", lost))
        self.left(list(self.tickets.values()))


def tell(answer: asyncio.Future[bool], value: bool) -> None:
    """Answer, if anybody still waits for it."""
    if not answer.done():
        answer.set_result(value)
