"""A fair lock with which several threads share one decode loop; no interruption leaves it locked.

Python runs the handler of Ctrl-C when a function begins, after a call and when a loop repeats. An
`__exit__` written in Python can therefore be interrupted before it releases anything. Here no
Python code releases: each thread holds an `RLock` of its own turn, whose `__exit__` is C code, and
the next thread waits for that lock (the queue of Craig, Landin and Hagersten).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any


class FairLock:
    """A lock that threads get in the order in which they asked for it.

    Use it as `with lock.turn():`. A thread may enter a lock again that it holds or waits for: a
    stream that the garbage collector closes within a step ends its own request.
    """

    def __init__(self) -> None:
        self._joining = threading.RLock()
        self._last: Turn | None = None

    def turn(self) -> Turn:
        """Return a turn, to be entered once."""
        return Turn(self)

    def join(self, turn: Turn) -> None:
        """Put a turn at the end of the queue."""
        with self._joining:
            # In this order: an interruption between the two leaves the queue as it was.
            turn.before = self._last
            self._last = turn

    def own(self) -> Turn | None:
        """Return the turn that this thread has or waits for, if any."""
        turn = self._last
        while turn is not None and not turn.mine:
            turn = turn.before
        return turn


class Turn:
    """One thread's turn at a `FairLock`, from the moment it joins the queue."""

    def __init__(self, lock: FairLock) -> None:
        self._lock = lock
        self._held: Any = threading.RLock()
        self.before: Turn | None = None  # the turn to wait for; None once it is this one's turn

    @property
    def mine(self) -> bool:
        """Whether this thread holds this turn."""
        owned: bool = self._held._is_owned()
        return owned

    def __enter__(self) -> None:
        outer = self._lock.own()
        self._held.acquire()  # no other thread knows of it yet
        if outer is not None:
            outer.wait()
            return
        try:
            self._lock.join(self)
            self.wait()
        except BaseException:
            self._held.release()  # first: nothing interrupts before this call ends
            raise

    # `with` looks this up before it calls `__enter__`, so it exits by the RLock's own C method.
    __exit__: Callable[..., None] = property(attrgetter("_held.__exit__"))  # type: ignore[assignment]

    def wait(self) -> None:
        """Wait until every turn before this one is over.

        A turn that was interrupted while it waited is over, but its predecessor may not be.
        """
        while (turn := self.before) is not None:
            with turn._held:
                pass
            self.before = turn.before
