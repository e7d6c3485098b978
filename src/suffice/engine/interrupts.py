"""Ctrl-C waits for the end of a step, so that a step is done for all requests or for none.

The interrupted thread decodes the tokens of all callers. An exception between the run of a token
and its commit would leave a row missing in the caches of other callers' requests.

Handlers are set twice in every step. `signal.signal` and `signal.getsignal` convert each handler to
an enum and back, which takes most of their time; those of `_signal`, which they call, do not.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGINT = int(signal.SIGINT)


class deferred:  # noqa: N801  (reads as a verb: `with deferred():`)
    """Holds Ctrl-C back until the end of a `with` block, where its handler is called.

    Python handles signals in the main thread only, so other threads have nothing to hold back.
    """

    def __init__(self) -> None:
        self.handler: Any = None  # the handler that this replaces; None if it replaces none
        self.came = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Record an interruption."""
        self.came = True

    def __enter__(self) -> None:
        handler = _handler()
        if callable(handler) and _holding(handler) is None:
            self.handler = handler
            _signal.signal(_SIGINT, self.note)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.handler is not None:
            _signal.signal(_SIGINT, self.handler)
            self.call()

    def call(self) -> None:
        """Raise an interruption that was held back, for the handler now in place."""
        if self.came:
            self.came = False
            signal.raise_signal(signal.SIGINT)


class allowed:  # noqa: N801
    """Lets Ctrl-C through within `deferred`, including one that was held back.

    This is no generator: one that the garbage collector closes late would hold Ctrl-C back forever.
    """

    def __init__(self) -> None:
        self._holding: deferred | None = None

    def __enter__(self) -> None:
        self._holding = _holding(_handler())
        if self._holding is not None:
            try:
                _signal.signal(_SIGINT, self._holding.handler)
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
            _signal.signal(_SIGINT, self._holding.note)


def _handler() -> Any:
    """Return the handler of SIGINT; None in threads that it cannot interrupt."""
    main = threading.current_thread() is threading.main_thread()
    return _signal.getsignal(_SIGINT) if main else None


def _holding(handler: Any) -> deferred | None:
    """Return the `deferred` that a handler belongs to, if any."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, deferred) else None
