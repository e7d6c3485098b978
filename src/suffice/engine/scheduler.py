"""Holds the requests that wait and those that run. No tensors here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from suffice.engine.admission import below, estimated_wait, in_order, note_start, who_gives_way
from suffice.engine.fairness import FairShare
from suffice.engine.request import Request, Sample

Answer = Literal["yes", "no", "later"]
_KNOWN_STARTS = 16  # from which the waiting time is estimated


class Scheduler:
    """Requests start in the order of `admission`: a request waits until all its samples fit.

    Of equal requests, none overtakes another. `deferred` counts the requests
    that wait for another's prompt, which begins as theirs, and not for places or memory.
    """

    def __init__(self, max_num_seqs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_num_seqs = max_num_seqs
        self.shares = FairShare()
        self._clock = clock
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._arrivals = 0
        self.deferred = 0
        self._starts: deque[float] = deque(maxlen=_KNOWN_STARTS)

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to do."""
        return not (self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """The number of requests that have not started."""
        return len(self._waiting)

    @property
    def running(self) -> list[Request]:
        """The requests that have started, oldest start first."""
        return list(self._running)

    def wait(self, ahead: int) -> float:
        """Return the estimated seconds until a request behind `ahead` others would start."""
        return estimated_wait(ahead, list(self._starts))

    def add(self, request: Request) -> None:
        """Queue a request, of at most `max_num_seqs` samples."""
        self.shares.join(request.key, (each.key for each in (*self._waiting, *self._running)))
        request.arrival = self._arrivals
        self._arrivals += 1
        self._waiting.append(request)

    def admit(self, fits: Callable[[Request], Answer] = lambda request: "yes") -> Request | None:
        """Return the next request to start, and count it as running; None if it does not fit.

        `fits` makes room for a request and says whether there is: "no" makes all wait, "later" only
        this one, until another's prompt, whose beginning it shares, has been run. It is asked only
        if there would be places enough without the requests of a lower priority.
        """
        self.deferred = 0
        for request in in_order(self._waiting, self.shares.served):
            if self.lacking(request) > sum(len(each.running) for each in self._lower(request)):
                return None
            answer = fits(request)
            if answer == "no":
                return None
            if answer == "later":
                self.deferred += 1
            if answer == "yes":
                self._waiting.remove(request)
                note_start(request, self._waiting)
                self._running.append(request)
                self._starts.append(self._clock())
                return request
        return None

    def put_back(self, request: Request) -> None:
        """Let a request that was admitted wait again; it keeps its place in the order."""
        self._running.remove(request)
        self._waiting.append(request)

    def lacking(self, request: Request) -> int:
        """Return how many of the places that a request needs are taken by others."""
        return max(0, len(self.samples()) + len(request.running) - self.max_num_seqs)

    def who_gives_way(self, to: Request | None = None) -> Request | None:
        """Return who is parked first: for a waiting request of a higher priority, or for memory.

        See `admission`. None if there is nobody.
        """
        return who_gives_way(self._running if to is None else self._lower(to))

    def _lower(self, request: Request) -> list[Request]:
        return below(request.priority, self._running)

    def samples(self) -> list[Sample]:
        """Return the samples of the requests that run, oldest request first."""
        return [sample for request in self._running for sample in request.running]

    def retire(self) -> None:
        """Remove finished requests, including those that are still waiting."""
        self._running = [request for request in self._running if not request.finished]
        self._waiting = [request for request in self._waiting if not request.finished]
