"""Engines in a row that died at once: before they were ready, or soon and without a request.

Engines that failed by themselves will fail again, and the server stops after a few. SIGKILL comes
from outside: by a hand, or by the system for want of memory, which others may give back. So the
server tries much longer, but not for ever.
"""

from __future__ import annotations

import signal

MOST_FAILED = 5
MOST_KILLED = 20  # with the pauses between starts, about eight minutes
_KILLED = "were killed by SIGKILL, by a hand or for want of memory"


class Deaths:
    """Counts them.

    Attributes:
        failed: Engines that ended by themselves.
        killed: Engines that SIGKILL ended.
    """

    def __init__(self) -> None:
        self.failed = self.killed = 0
        self._code: int | None = None  # of the last one

    def note(self, code: int | None, *, at_once: bool) -> None:
        """Count an engine that ended with an exit code; one that lived ends the row."""
        if not at_once:
            self.failed = self.killed = 0
        elif code == -signal.SIGKILL:
            self.killed += 1
        else:
            self.failed += 1
        self._code = code

    @property
    def any(self) -> bool:
        """Whether the last engine died at once."""
        return self.failed + self.killed > 0

    def ailment(self) -> str | None:
        """Return in a line what has become of several engines; None of one."""
        if self.failed + self.killed < 2:
            return None
        if not self.failed:
            return f"{self.killed} engines in a row {_KILLED}"
        return f"{self.failed + self.killed} engines died without a request"

    def gone(self) -> str | None:
        """Return in a line why no more engines are started; None if more are."""
        if self.failed >= MOST_FAILED:
            died = f"{self.failed} engines in a row died at once (exit code {self._code})"
            return f"{died}: see the lines above"
        if self.killed >= MOST_KILLED:
            return f"{self.killed} engines in a row {_KILLED}, before they were of use"
        return None
