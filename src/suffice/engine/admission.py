"""Decides who starts next, and who gives way when memory runs out. No tensors here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

MAX_OVERTAKES = 32


class Candidate(Protocol):
    """A request that waits or runs.

    `priority`: a smaller number comes first. `arrival` counts requests in the order in which they
    came, `overtaken` those that came later and started earlier.
    """

    priority: int
    key: str
    arrival: int
    overtaken: int


C = TypeVar("C", bound=Candidate)


def in_order(
    waiting: Sequence[C], served: Callable[[str], float], most: int = MAX_OVERTAKES
) -> list[C]:
    """Return who waits in the order in which they should start.

    Those that `most` others overtook come first, in order of arrival. The rest come by priority,
    then by what their key was `served`, then by arrival.
    """

    def place(request: C) -> tuple[object, ...]:
        if request.overtaken >= most:
            return (0, 0, 0.0, request.arrival)
        return (1, request.priority, served(request.key), request.arrival)

    return sorted(waiting, key=place)


def note_start(started: Candidate, waiting: Iterable[Candidate]) -> None:
    """Count whom a request that starts overtakes."""
    for other in waiting:
        if other.arrival < started.arrival:
            other.overtaken += 1


def below(priority: int, running: Iterable[C], most: int = MAX_OVERTAKES) -> list[C]:
    """Return who may be parked so that a request of a priority can start.

    Not whom `most` others overtook: parked again and again, it would never end.
    """
    return [each for each in running if each.priority > priority and each.overtaken < most]


def who_gives_way(running: Iterable[C]) -> C | None:
    """Return the newest request of the lowest priority; None if there is nobody."""
    return max(running, key=lambda each: (each.priority, each.arrival), default=None)


def estimated_wait(ahead: int, started: Sequence[float]) -> float:
    """Return the seconds until one of `ahead` waiting requests has started.

    `started` are the times of the last starts, in seconds. One second if too few are known.
    """
    if len(started) < 2 or started[-1] <= started[0]:
        return 1.0
    each = (started[-1] - started[0]) / (len(started) - 1)
    return min(max(each * max(ahead, 1), 0.1), 600.0)
