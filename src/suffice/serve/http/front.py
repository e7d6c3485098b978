"""A model that is served: its settings, text, engines, metrics, and the requests under way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from suffice.decoder.pooling import Pooling
from suffice.engine.work import Delta
from suffice.errors import InputError, nearest
from suffice.paths import cache_dir
from suffice.pull import resolve
from suffice.serve.errors import Problem
from suffice.serve.http.bodies import cancelled, stopping
from suffice.serve.http.chance import drawn
from suffice.serve.http.slots import Slots
from suffice.serve.http.stored import Responses
from suffice.serve.http.text import Text
from suffice.serve.http.turns import TURN
from suffice.serve.processes import wire
from suffice.serve.processes.fleet import Fleet
from suffice.serve.processes.live import Live
from suffice.serve.processes.metrics import Metrics
from suffice.serve.processes.pending import NOWHERE, SWEEP_SECONDS, Mailbox, Observer, Ticket
from suffice.serve.settings import Settings
from suffice.text.tokenizer import load_tokenizer

LONGEST_WAIT = 60.0  # seconds that a refused client is asked to wait, at most


@dataclass(eq=False)
class Job:
    """One HTTP request and its tickets.

    Attributes:
        waited: Seconds until its model was loaded.
        writing_since: When the write began that the client has not taken yet.
        place: The place that it asks for, -1 for any; None: it generates nothing.
        copies: How often each sample is shown; greedy samples are generated once.
        gone: Whether its client left, or reads nothing; `task` has been cancelled.
    """

    id: str
    key: str
    mailbox: Mailbox = field(default_factory=Mailbox)
    created: float = field(default_factory=time.monotonic)
    stamp: int = field(default_factory=lambda: int(time.time()))
    waited: float = 0.0
    writing_since: float | None = None
    task: asyncio.Task[Any] | None = None
    copies: int = 1
    place: int | None = None
    gone: bool = False
    done: bool = False

    @property
    def tickets(self) -> list[Ticket]:
        """The requests to the engine."""
        return self.mailbox.tickets

    def abandon(self) -> None:
        """Stop writing: nobody reads it."""
        if self.task is not None and not self.done:
            self.gone = True
            self.task.cancel()


FleetOf = Callable[[Settings, Observer], Fleet]


class Front:
    """What the routes that use a model share. The event loop's thread alone uses it.

    Attributes:
        slots: What the places of `slot_save_path` have last ended with.
        draining: Whether it takes no more requests.
        hurried: Whether requests do not end by themselves: see `drain`.
        keep_seconds: After its last request, how long the model stays loaded; None: as the server
            says.
        lost: Is told why no engine will come.
        emptied: Is called when the last request has ended.
    """

    def __init__(self, settings: Settings, fleet: FleetOf, text: Text | None = None) -> None:
        """Prepare the engines that `fleet` makes; without `text` it is loaded with the model."""
        self.settings = settings
        self.metrics = Metrics(settings.metrics_prefix, settings.names[0])
        self.instance = fleet(settings, self._observe)
        self.live = Live(self.instance)
        self.metrics.watch(lambda: self.instance.engines)
        for at, member in enumerate(self.instance.members):
            member.stepped = partial(self.metrics.steps, str(at))
        self.jobs: dict[str, Job] = {}
        self.slots = Slots(0 if settings.slot_save_path is None else self.places)
        self.draining = self.hurried = False
        self.keep_seconds: float | None = None
        self.stored = Responses(
            cache_dir() / "responses.sqlite", settings.store_bytes, 86_400 * settings.store_days
        )
        self._text = self._given_text = text
        self._keys: Counter[str] = Counter()
        self._sweeper: asyncio.Task[None] | None = None
        self.lost: Callable[[str], None] = lambda why: None
        self.emptied: Callable[[], None] = lambda: None
        self._mean_seconds = 1.0  # of the last requests, for estimates of a wait

    @property
    def text(self) -> Text:
        """The tokenizer and the template; see `read_text`."""
        assert self._text is not None, "the front has been started"
        return self._text

    async def read_text(self) -> Text:
        """Load the tokenizer and the template, unless they are there.

        Raises:
            InputError: They cannot be used.
        """
        if self._text is None:
            options = self.settings.options
            source = options.get("tokenizer") or resolve(str(options.get("model")))
            tokenizer = await asyncio.to_thread(load_tokenizer, source)
            self._text = Text(tokenizer, *self.settings.forms)
        return self._text

    async def shown_text(self) -> Text:
        """Return the tokenizer and the template for a request that needs no engine.

        Raises:
            Problem: They cannot be used.
        """
        try:
            return await self.read_text()
        except InputError as error:
            raise Problem("load_failed", str(error)) from None

    @property
    def facts(self) -> wire.Facts:
        """What the engine said of its model."""
        if (found := self.instance.facts) is None:
            raise Problem("loading", "the model is being loaded", wait=1.0)
        return found

    @property
    def pooling(self) -> Pooling:
        """How the model embeds; its matrices are the engine's."""
        return Pooling.of(self.facts.pooling)

    async def start(self) -> None:
        """Start the engine and load the tokenizer, and return when both are there.

        Raises:
            InputError: The model or an option cannot be used.
            Problem: The engine died before it was ready.
        """
        started = asyncio.create_task(self.instance.start())
        await self.read_text()
        await started
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stop the engine and end what is left; it may be started again."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.instance.close()
        self.stored.close()
        if self._text is not None and self._text is not self._given_text:
            self._text.close()
        self._text = self._given_text

    def check_model(self, name: str | None) -> str:
        """Return the name that answers have.

        Raises:
            Problem: Another model is asked for.
        """
        names = (*self.settings.names, *self.settings.adapters)
        if name is None or name in names:
            return name or names[0]
        if self.settings.any_model:
            return names[0]
        near = nearest(name[:200], names)
        message = f"the model '{name[:60]}' is not served here.{near} Served: {', '.join(names)}"
        raise Problem("model_not_found", message, param="model")

    @contextlib.contextmanager
    def job(self, prefix: str, key: str, asked: str | None = None) -> Iterator[Job]:
        """Register an HTTP request; an error within ends its work. See `finish`.

        Raises:
            Problem: The queue is full, or the key has too many requests.
        """
        self._admit(key)
        turn = TURN.get()  # whose id its client may have been told
        ident = asked or (turn and turn.ident) or f"{prefix}-{drawn(12).hex()}"
        if ident in self.jobs:
            message = f"request_id '{ident}' is in use"
            raise Problem("invalid_value", message, param="request_id")
        job = Job(ident, key, waited=turn.seconds if turn else 0.0)
        self.jobs[ident] = job
        self._keys[key] += 1
        try:
            yield job
        except BaseException:
            self.finish(job)
            raise

    def _admit(self, key: str) -> None:
        settings = self.settings
        if self.draining:
            raise stopping()
        if settings.max_per_key and self._keys[key] >= settings.max_per_key:
            message = f"this key has {settings.max_per_key} requests already, the most allowed"
            raise Problem("too_many_requests", message, wait=self.wait())
        if self.full:
            message = f"{len(self.jobs)} requests run or wait already, the most allowed"
            raise Problem("queue_full", message, wait=self.wait())

    @property
    def places(self) -> int:
        """Samples that decode together, in all engines."""
        return self.settings.max_num_seqs * self.settings.instances

    @property
    def full(self) -> bool:
        """Whether the queue is full."""
        return len(self.jobs) >= self.settings.max_queue + self.places

    def wait(self) -> float:
        """Return the estimated seconds until a request ends and the queue moves."""
        waiting = max(1, len(self.jobs) - self.places + 1)
        return min(LONGEST_WAIT, waiting * self._mean_seconds / self.places)

    def submit(self, job: Job, works: Sequence[wire.Submit]) -> None:
        """Hand the works of an HTTP request to the engine."""
        for at, work in enumerate(works):
            ticket = Ticket(work, int(work.params.get("n", 1)), at, job.mailbox)
            job.tickets.append(ticket)
            if job.place is not None:
                self.slots.take(ticket, job.place)
            self.instance.submit(ticket)

    def _observe(self, ticket: Ticket, delta: Delta, now: float) -> None:
        self.metrics.delta(ticket, delta, now)
        if self.live.watchers:
            self.live.delta(ticket, delta)

    def finish(self, job: Job) -> None:
        """End an HTTP request, and what still runs of it."""
        if job.done:
            return
        job.done = True
        self.jobs.pop(job.id, None)
        self._keys[job.key] -= 1
        if not self._keys[job.key]:
            del self._keys[job.key]
        for ticket in job.tickets:
            self.instance.cancel(ticket)
            self.metrics.finished(ticket)
            self.slots.leave(ticket)
            ticket.mailbox = NOWHERE
        self._mean_seconds += 0.1 * (time.monotonic() - job.created - self._mean_seconds)
        if not self.jobs:
            self.emptied()

    def cancel(self, ident: str, key: str = "") -> bool:
        """End a request by its id; return whether there was one of this API key."""
        job = self.jobs.get(ident)
        if job is None or not self.same(job.key, key):
            return False
        self._fail(job, cancelled())
        return True

    def same(self, key: str, other: str) -> bool:
        """Whether two API keys are the same, where there are any."""
        return not self.settings.api_keys or key == other

    def _fail(self, job: Job, problem: Problem) -> None:
        """End the work of a request; its route writes the error, after what has come already."""
        for ticket in job.tickets:
            self.instance.cancel(ticket)
        job.mailbox.fail(problem)

    async def drain(self) -> None:
        """Take no more requests; return when all have ended, or their time is up, or `hurried`."""
        self.draining = True
        end = time.monotonic() + self.settings.shutdown_seconds
        while self.jobs and time.monotonic() < end and not self.hurried:
            await asyncio.sleep(0.02)
        for job in list(self.jobs.values()):
            self._fail(job, Problem("draining", "the server shut down", wait=5.0))
        for _ in range(50):  # let the routes write these errors
            if not self.jobs:
                break
            await asyncio.sleep(0.02)

    def _give_up(self, why: str) -> None:
        """End all requests: no engine will run them."""
        self.draining = True
        for job in list(self.jobs.values()):
            self._fail(job, Problem("engine_lost", why))
        self.lost(why)

    async def _sweep(self) -> None:
        """End waits; give up clients that read nothing, and requests whose time is up."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            if (why := self.instance.gone) is not None and not self.draining:
                self._give_up(why)
            for job in list(self.jobs.values()):
                job.mailbox.sweep(now)
                since = job.writing_since
                if since is not None and now - since > self.settings.stall_seconds:
                    job.abandon()
                elif (limit := self.settings.request_seconds) and now - job.created > limit:
                    message = f"the request took longer than {limit:g} seconds"
                    self._fail(job, Problem("deadline", message))
