"""Ctrl-C between steps: what a step does for all requests is done for all or for none.

The thread that is interrupted decodes everybody's tokens. An exception between the run of a token
and its entry would leave the caches of requests that nobody wanted to end without a row.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class deferred:  # noqa: N801  (reads as a verb: `with deferred():`)
    """Holds Ctrl-C back until the end of a `with` block; its handler is called then.

    Python handles signals in the main thread alone: elsewhere there is nothing to hold back.
    """

    def __init__(self) -> None:
        self.handler: Any = None  # what this one stands for, None if it does nothing
        self.came = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take note of an interruption."""
        self.came = True

    def __enter__(self) -> None:
        handler = _handler()
        if callable(handler) and _holding(handler) is None:
            self.handler = handler
            signal.signal(signal.SIGINT, self.note)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.handler is not None:
            signal.signal(signal.SIGINT, self.handler)
            self.call()

    def call(self) -> None:
        """Call the handler, if it may be called, for an interruption that was held back."""
        if self.came:
            self.came = False
            signal.raise_signal(signal.SIGINT)


class allowed:  # noqa: N801
    """Lets Ctrl-C through within `deferred`, one that was held back too.

    No generator: closed late, by the collector, it would hold Ctrl-C back for ever.
    """

    def __init__(self) -> None:
        self._holding: deferred | None = None

    def __enter__(self) -> None:
        self._holding = _holding(_handler())
        if self._holding is not None:
            try:
                signal.signal(signal.SIGINT, self._holding.handler)
                self._holding.call()
            except BaseException:
                self.__exit__(None, None, None)
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._holding is not None:
            signal.signal(signal.SIGINT, self._holding.note)


def _handler() -> Any:
    """Return the handler of SIGINT as far as this thread may be interrupted by it."""
    main = threading.current_thread() is threading.main_thread()
    return signal.getsignal(signal.SIGINT) if main else None


def _holding(handler: Any) -> deferred | None:
    """Return the `deferred` that a handler belongs to, if any."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, deferred) else None
