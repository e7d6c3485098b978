"""Decides which request runs next. No tensors here."""

from __future__ import annotations

from collections import deque

from suffice.engine.request import Request, Sample


class Scheduler:
    """First come, first served: a request waits until all its samples fit into the batch.

    No request overtakes another, so none starves.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to do."""
        return not (self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """Requests that have not started."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that have started."""
        return len(self._running)

    def add(self, request: Request) -> None:
        """Put a request, of at most `max_num_seqs` samples, at the end of the queue."""
        self._waiting.append(request)

    def admit(self) -> Request | None:
        """Return the next request to start, and count it as running; None if it does not fit."""
        if not self._waiting:
            return None
        if len(self.samples()) + len(self._waiting[0].samples) > self.max_num_seqs:
            return None
        request = self._waiting.popleft()
        self._running.append(request)
        return request

    def put_back(self, request: Request) -> None:
        """Put the request that was admitted last back at the front of the queue."""
        self._running.remove(request)
        self._waiting.appendleft(request)

    def samples(self) -> list[Sample]:
        """Return the samples of the next decode step, oldest request first."""
        return [sample for request in self._running for sample in request.running]

    def retire(self) -> None:
        """Remove finished requests, including those that are still waiting."""
        self._running = [request for request in self._running if not request.finished]
        self._waiting = deque(request for request in self._waiting if not request.finished)
