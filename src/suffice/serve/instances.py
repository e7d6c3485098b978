"""An engine's process: started, watched, and started again if it dies.

Requests outlive it. Their tokens so far go to the next engine, or to another one, as known tokens;
since every request has a seed, their streams continue with the bits that they would have had.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from suffice.engine.work import Look
from suffice.errors import InputError
from suffice.serve import wire
from suffice.serve.blame import Blame
from suffice.serve.cores import Share
from suffice.serve.errors import Problem
from suffice.serve.link import Link
from suffice.serve.pending import Observer, Ticket
from suffice.serve.settings import Settings

LOG = logging.getLogger("suffice.serve")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a dead engine is started again
MOST_AT_ONCE = 5  # engines in a row that may die before they are ready, or soon and idle
_REFUSALS = {"input": "invalid_value", "busy": "queue_full", "closed": "draining"}


@dataclass
class Life:
    """One life of the engine: its process and the link to it."""

    process: subprocess.Popen[bytes]
    link: Link
    writer: asyncio.WriteTransport
    heard: float = field(default_factory=time.monotonic)
    ready: bool = False  # was, once


class Instance:
    """Hands tickets to the engine and deltas to tickets; the event loop's thread alone uses it.

    Attributes:
        facts: Of the engine that was ready last; None before the first.
        stats: The engine's last counts.
        past: The sums of the last counts of engines that died.
        restarts: Engines that died.
        failovers: Requests that went on in another engine.
        gone: Why no engine can be kept alive; None if one can.
        seen: Takes looks at the engine; see `watch`.
        stepped: Takes the numbers of tokens that the engine's steps ran.
        left: Takes the tickets of an engine that died; those that it leaves wait for the next.
        back: Is called when an engine is ready.
    """

    def __init__(self, settings: Settings, observe: Observer, share: Share | None = None) -> None:
        self.facts: wire.Facts | None = None
        self.stats: dict[str, Any] = {}
        self.past: Counter[str] = Counter()
        self.restarts = self.failovers = 0
        self.tickets: dict[str, Ticket] = {}
        self._settings = settings
        self._observe = observe
        self.seen: Callable[[Look], None] = lambda look: None
        self.stepped: Callable[[list[int]], None] = lambda tokens: None
        self.left: Callable[[list[Ticket]], None] = lambda tickets: None
        self.back: Callable[[], None] = lambda: None
        self._share = share
        self._blame = Blame(self._hand, settings.max_num_seqs)
        self.gone: str | None = None
        self._at_once = 0
        self._watched = False
        self._life: Life | None = None  # once it is ready
        self._newest: Life | None = None
        self._idle = 0.0
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        # A process inherits the priority of the thread that starts it, and this one's is the first.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
        self._starter.submit(int).result()

    async def start(self) -> None:
        """Start the engine and wait until it is ready.

        Raises:
            InputError: Its options are bad.
            Problem: It died before it was ready.
        """
        self._started = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep())
        await self._started

    async def close(self) -> None:
        """Stop the engine."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._starter.shutdown(wait=False)

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
        now = time.monotonic()
        if self._life is None:
            many = self._at_once > 1
            return f"{self._at_once} engines died without a request" if many else None
        silent = now - self._life.heard
        if silent > self._settings.heartbeat_seconds:
            return f"the engine has said nothing for {silent:.0f} seconds"
        if self._idle > self._settings.step_seconds:
            return f"the engine has work and made no step for {self._idle:.0f} seconds"
        return None

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
        if self.tickets.pop(ticket.work.id, None) is None:
            return
        ticket.over = True
        self._tell(wire.Cancel(ticket.work.id))
        self._blame.passed(ticket)

    def _tell(self, message: wire.Down) -> None:
        """Send a message, unless the link has just ended: the next engine gets all that is open."""
        if self._life is not None and not self._life.writer.is_closing():
            self._life.writer.write(wire.frame(message))

    def _hand(self, ticket: Ticket) -> None:
        """Send a ticket to the engine, with the tokens that others gave it."""
        known = [list(tokens) for tokens in ticket.emitted] if ticket.generated else []
        self.failovers += ticket.deaths > 0
        self._tell(msgspec.structs.replace(ticket.work, known=known))

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            life = None
            try:
                life = await self._launch()
                await life.link.ended
            except OSError as error:  # no file descriptor, no memory for a process
                LOG.error("the engine cannot be started: %s", error)
            except Exception:
                LOG.exception("the engine's message could not be taken")
            finally:
                self._life = None
                await self._end(life)
            lived = time.monotonic() - began
            if self._started is not None and not self._started.done():
                self._started.set_exception(Problem("engine_lost", "the engine did not start"))
                return
            if life is not None:
                self._note_death(life, soon=lived < LONGEST_PAUSE)
            self._mourn()
            pause = pause if self._at_once else FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _launch(self) -> Life:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(self._starter, started, theirs.fileno())
        try:
            process = await asyncio.shield(starting)
            writer, link = await loop.create_connection(lambda: Link(self._take), sock=ours)
        except BaseException:  # also if the server stops meanwhile: no process may be left
            ours.close()
            with contextlib.suppress(OSError):
                process = await starting
                process.kill()
                await asyncio.to_thread(process.wait)
            raise
        finally:
            theirs.close()
        writer.write(wire.frame(self._first_message()))
        self._newest = Life(process, link, writer)
        return self._newest

    def _first_message(self) -> wire.Start:
        settings, share, options = self._settings, self._share, dict(self._settings.options)
        if share is not None:
            options["threads"] = options.get("threads") or share.threads
        cpus = () if share is None else share.cpus
        return wire.Start(settings.engine, options, dict(settings.limits), cpus)

    def _take(self, message: wire.Up) -> None:
        """Take a message of the newest engine; those before it have ended."""
        life = self._newest
        assert life is not None, "an engine that speaks has been launched"
        life.heard = time.monotonic()
        if isinstance(message, wire.Step):
            self._deliver(message, life.heard)
        elif isinstance(message, wire.Beat):
            self.stats, self._idle = message.stats, message.idle
            self.stepped(message.step_tokens)
        elif isinstance(message, wire.Seen):
            self.seen(message.look)
        elif isinstance(message, wire.Facts):
            self._welcome(life, message)
        elif isinstance(message, wire.Refused):
            self._refuse(message)
        elif self._started is not None and not self._started.done():
            self._started.set_exception(InputError(message.message))

    def _welcome(self, life: Life, facts: wire.Facts) -> None:
        self.facts, self._life, self._idle = facts, life, 0.0
        life.ready, self.gone = True, None
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        self._blame.begin(self.tickets.values())
        if self._watched:
            self.watch(True)
        self.back()

    def _deliver(self, step: wire.Step, now: float) -> None:
        for delta in step.deltas:
            ticket = self.tickets.get(delta.id)
            if ticket is None:  # cancelled
                continue
            self._observe(ticket, delta, now)
            ticket.last_at = now
            if ticket.first_at is None:
                ticket.first_at = now
            ticket.take(delta)
            if ticket.over:
                del self.tickets[delta.id]
            if ticket.silent:
                ticket.silent = False
                self._blame.passed(ticket)

    def _refuse(self, message: wire.Refused) -> None:
        ticket = self.tickets.pop(message.id, None)
        if ticket is None:
            return
        ticket.over = True
        self._blame.passed(ticket)
        wait = message.wait if message.kind != "input" else None
        code = _REFUSALS.get(message.kind, "internal")
        ticket.mailbox.fail(Problem(code, message.message, wait=wait))

    def _note_death(self, life: Life, soon: bool) -> None:
        """Count engines that died of themselves; those that had work may die ever so often."""
        of_itself = not life.ready or (soon and not self.tickets)
        self._at_once = self._at_once + 1 if of_itself else 0
        if self._at_once >= MOST_AT_ONCE:
            code = life.process.returncode
            died = f"{self._at_once} engines in a row died at once (exit code {code})"
            self.gone = f"{died}: see the lines above"

    def _mourn(self) -> None:
        """Note that the engine died, and give up the requests that it may have died of."""
        self.restarts += 1
        self.past.update(self.stats)
        self.stats = {}
        LOG.error("the engine died; %d requests go on in another one", len(self.tickets))
        for ticket in self.tickets.values():
            ticket.deaths += 1
        for ticket in self._blame.died():
            del self.tickets[ticket.work.id]
            ticket.over = True
            lost = f"the engine died {ticket.blamed} times when this request alone was to blame"
            ticket.mailbox.fail(Problem("engine_lost", lost))
        self.left(list(self.tickets.values()))

    async def _end(self, life: Life | None) -> None:
        if life is None:
            return
        life.writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(life.process.wait), 5.0)
            return
        life.process.kill()
        await asyncio.to_thread(life.process.wait)


def started(link: int) -> subprocess.Popen[bytes]:
    """Start an engine's process with its end of the link."""
    return subprocess.Popen(
        [sys.executable, "-m", "suffice.serve.engine_process", str(link)],
        pass_fds=[link],
        stdin=subprocess.DEVNULL,
    )
