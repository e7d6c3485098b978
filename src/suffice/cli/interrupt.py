"""Makes Ctrl-C end the process while modules are imported and models are loaded.

An exception does not work there: a callback of the import system loses it, and extension modules
turn it into errors of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130
TERMINATED = 143
_SHOW_CURSOR = b"\x1b[?25h\n"  # a progress display hides it


@contextlib.contextmanager
def ends_process() -> Iterator[None]:
    """Make Ctrl-C end the process at once and silently, unless it is handled or ignored already.

    Only for code that needs no cleanup: none is done.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def terminates_as_interrupt() -> Iterator[None]:
    """Make SIGTERM do what Ctrl-C does, but for the exit code, which is 143.

    For long work that says how far it is and ends well: that is what service managers send.
    """
    terminated = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if terminated:
            raise SystemExit(TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
