"""Engines, their router and the front, in the order of simulated time.

The front is one thread: what it does for requests and tokens waits in its queue. An engine's step
begins when the one before has ended, or when a request comes while it does nothing. What a step
gave reaches the front when the step has ended.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from suffice.plan.costs import Hardware
from suffice.plan.instance import News, SimulatedInstance
from suffice.plan.setting import Setting
from suffice.plan.stored import Calibration
from suffice.plan.trace import Arrival
from suffice.serve.processes import wire
from suffice.serve.processes.fleet import load_of
from suffice.serve.processes.pending import Mailbox, Ticket
from suffice.serve.processes.router import Load, Router


@dataclass
class Outcome:
    """What became of a request; times are seconds since the trace began.

    Attributes:
        sent: When it came, which is later than its arrival if it waited for another's end.
        chunks: When each of its tokens was written.
        queued: Seconds from its coming to an engine to its start there.
        instance: The number of its engine.
        error: Why it was refused or has failed; None if it has not.
    """

    arrival: Arrival
    sent: float = 0.0
    chunks: list[float] = field(default_factory=list)
    queued: float = 0.0
    instance: int | None = None
    error: str | None = None
    ended: bool = False


@dataclass(frozen=True)
class Run:
    """A simulated load.

    Attributes:
        seconds: From the first arrival to the last token.
        busy: Seconds in which each engine worked; `front_busy` those of the front.
        most_bytes: The most that the keys and values of each engine took.
        most_waiting: The most requests that waited in one engine.
        most_behind: The longest that work waited for the front, in seconds.
    """

    outcomes: list[Outcome]
    seconds: float
    busy: list[float]
    front_busy: float
    most_bytes: list[int]
    most_waiting: int
    most_behind: float


class _Front:
    """The thread of the front."""

    def __init__(self) -> None:
        self.free = self.busy = self.most_behind = 0.0

    def work(self, now: float, seconds: float) -> float:
        """Do something that comes now; return when it is done."""
        began = max(now, self.free)
        self.most_behind = max(self.most_behind, began - now)
        self.free = began + seconds
        self.busy += seconds
        return self.free


class Cluster:
    """A setting at work on one load; use it once."""

    def __init__(self, setting: Setting, calibration: Calibration) -> None:
        self._setting = setting
        self._front = _Front()
        self._router = Router(setting.instances, setting.places, setting.step_seconds)
        # Seconds that the front takes from the engines next to it, which their next steps lose.
        near = 0 if setting.front_apart else min(setting.per_node, setting.instances)
        self._taken = [0.0] * near
        self._nodes = [0] * -(-setting.instances // setting.per_node)  # engines at work
        self.instances = [
            SimulatedInstance(calibration, setting, self._hardware_of(at))
            for at in range(setting.instances)
        ]
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._open = 0  # requests under way
        self._outcomes: list[Outcome] = []
        self._later: deque[int] = deque()  # those that wait for another's end
        self._prefixes: dict[str | int, int] = {}
        self._tell: Callable[[], None] = lambda: None

    def run(
        self,
        arrivals: Sequence[Arrival],
        *,
        concurrency: int | None = None,
        tell: Callable[[], None] = lambda: None,
    ) -> Run:
        """Simulate a load to its end; `tell` is called at the end of each request.

        At most `concurrency` requests are under way; others come when one ends.
        """
        self._tell = tell
        self._outcomes = [Outcome(each) for each in arrivals]
        self._prefixes = {
            prefix: number
            for number, prefix in enumerate(
                dict.fromkeys(each.prefix for each in arrivals if each.prefix is not None)
            )
        }
        for number, each in enumerate(arrivals):
            if concurrency is not None and number >= concurrency:
                self._later.append(number)
            else:
                self._at(each.arrival, self._arrive, number)
        last = 0.0
        while self._heap:
            last, _, act, arguments = heapq.heappop(self._heap)
            act(last, *arguments)
        ends = [each.chunks[-1] for each in self._outcomes if each.chunks]
        first = min((each.sent for each in self._outcomes), default=0.0)
        return Run(
            outcomes=self._outcomes,
            seconds=max(ends, default=last) - first,
            busy=[each.runner.busy for each in self.instances],
            front_busy=self._front.busy,
            most_bytes=[each.runner.arena.most for each in self.instances],
            most_waiting=max(each.most_waiting for each in self.instances),
            most_behind=self._front.most_behind,
        )

    def _at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._heap, (when, next(self._order), act, arguments))

    def _front_work(self, now: float, seconds: float, client: float = 0.0) -> float:
        """Let the front do something that comes now; return when it is done.

        It takes a core from one of the engines next to it at a time, as does a client that reads.
        """
        for at in range(len(self._taken)):
            if self.instances[at].at_work:
                self._taken[at] += (seconds + client) / len(self._taken)
        return self._front.work(now, seconds)

    def _hardware_of(self, at: int) -> Callable[[], Hardware]:
        node = at // self._setting.per_node
        return lambda: self._setting.hardware(self._nodes[node])

    def _arrive(self, now: float, number: int) -> None:
        outcome, setting = self._outcomes[number], self._setting
        outcome.sent = now
        self._open += 1
        if self._open > setting.max_queue + setting.places * setting.instances:
            self._end(now, number, "the queue is full")
            return
        costs = setting.front
        prompt = outcome.arrival.prompt_tokens
        routing = costs.routed(setting.instances, self._open - 1, prompt)
        done = self._front_work(now, costs.request + routing)
        self._at(done, self._route, number)

    def _route(self, now: float, number: int) -> None:
        work = self._work(number)
        at = 0
        if len(self.instances) > 1:
            loads: list[Load | None] = [
                load_of(each.tickets, work, each.rates) for each in self.instances
            ]
            at = self._router.choose(work, loads)
        self._outcomes[number].instance = at
        ticket = Ticket(work, 1, 0, Mailbox(), created=now)
        self.instances[at].tickets[work.id] = ticket
        self._at(now + self._setting.front.link, self._deliver, at, work)

    def _work(self, number: int) -> wire.Submit:
        """Return the engine's form of a request: what prompts share are tokens of its own."""
        arrival = self._outcomes[number].arrival
        shared = arrival.prefix_tokens if arrival.prefix is not None else 0
        prefix = [self._prefixes[arrival.prefix]] * shared if arrival.prefix is not None else []
        own = [len(self._prefixes) + number] * (arrival.prompt_tokens - shared)
        params = {"temperature": 0, "max_tokens": arrival.output_tokens, "ignore_eos": True}
        return wire.Submit(
            str(number), prefix + own, params, priority=arrival.priority, key=arrival.key
        )

    def _deliver(self, now: float, at: int, work: wire.Submit) -> None:
        instance = self.instances[at]
        instance.deliver(now, work)
        if not instance.at_work:
            instance.at_work = True
            self._begin(now, at)

    def _begin(self, now: float, at: int) -> None:
        node, instance = at // self._setting.per_node, self.instances[at]
        self._nodes[node] += 1
        taken = 0.0
        if at < len(self._taken):
            taken, self._taken[at] = self._taken[at], 0.0
        news = instance.step(now, taken)
        self._at(instance.clock.now, self._ended, at, news)

    def _ended(self, now: float, at: int, news: list[News]) -> None:
        self._nodes[at // self._setting.per_node] -= 1
        self._at(now + self._setting.front.link, self._heard, at, news)
        if self.instances[at].idle:
            self.instances[at].at_work = False
        else:
            self._begin(now, at)

    def _heard(self, now: float, at: int, news: list[News]) -> None:
        """Write what a step gave."""
        for each in news:
            outcome, ticket = self._outcomes[int(each.id)], self.instances[at].tickets[each.id]
            costs = self._setting.front
            written = self._front_work(now, costs.token * each.tokens, costs.client * each.tokens)
            outcome.chunks += [written] * each.tokens
            outcome.queued = each.queued
            if ticket.first_at is None and each.tokens:
                self.instances[at].tickets.began(ticket, now)
            if each.ended:
                del self.instances[at].tickets[each.id]
                if each.error is None and len(self.instances) > 1:
                    self._router.keep(at, ticket.work, [0] * outcome.arrival.output_tokens)
                self._end(written, int(each.id), each.error)

    def _end(self, now: float, number: int, error: str | None) -> None:
        outcome = self._outcomes[number]
        assert not outcome.ended, "a request ends once"
        outcome.ended, outcome.error = True, error
        self._open -= 1
        self._tell()
        if self._later:
            following = self._later.popleft()
            arrival = self._outcomes[following].arrival.arrival
            self._at(max(now, arrival), self._arrive, following)
