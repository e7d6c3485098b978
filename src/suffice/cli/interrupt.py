"""Ctrl-C while modules are imported and models are loaded: it ends the process.

An exception would not do there: it is lost if it comes in a callback of the import system, and
extension modules turn it into errors of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h\n"  # a progress display hides it


@contextlib.contextmanager
def ends_process() -> Iterator[None]:
    """Make Ctrl-C end the process, at once and in silence, unless somebody handles or ignores it.

    For what leaves nothing behind: no cleanup is done.
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
