"""How many tokens a second an engine gives, of the last seconds."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 5.0
_APART = 0.1  # seconds from a count that is kept to the next but one


class Pace:
    """Counts of the last seconds, and what they grew by."""

    def __init__(self, now: float) -> None:
        self._counts = deque([(now, 0)])

    def note(self, total: int, now: float) -> None:
        """Note how many tokens there have been by now."""
        if len(self._counts) > 1 and now - self._counts[-2][0] < _APART:
            self._counts.pop()  # the last one is always kept: nothing may come for long after it
        self._counts.append((now, total))

    def per_second(self, total: int, now: float) -> float:
        """Return the tokens a second over the window, or since the start if that is later."""
        while len(self._counts) > 1 and self._counts[1][0] <= now - WINDOW_SECONDS:
            self._counts.popleft()
        then, before = self._counts[0]
        spent = min(now - then, WINDOW_SECONDS)
        return (total - before) / spent if spent > 0 else 0.0
