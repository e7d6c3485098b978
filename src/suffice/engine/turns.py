"""A fair lock, so that several threads can share one decode loop."""

from __future__ import annotations

import threading
from types import TracebackType


class Turns:
    """A lock that its last holder cannot take again before a thread that waits for it.

    Python's own lock lets a loop that releases and takes it overtake all others, step after step.
    A thread may enter again what it holds: a stream that is collected within a step ends itself.
    """

    def __init__(self) -> None:
        self._next = threading.RLock()  # held by whoever is next, while it waits
        self._held = threading.RLock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            self._held.acquire()
        else:
            with self._next:
                self._held.acquire()
            self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._held.release()
