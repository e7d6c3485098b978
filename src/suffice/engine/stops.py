"""Stop strings, found wherever token boundaries fall."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Collects text, stops at the first stop string, and holds back text that may become one.

    The result does not depend on how the text is cut into pieces. The stop string that is complete
    first wins; among several complete at the same character, the longest.
    """

    def __init__(self, stops: Sequence[str] = (), *, include: bool = False) -> None:
        self.hit: str | None = None
        self._stops = tuple(stops)
        self._include = include
        self._text = ""
        self._start = 0  # stop strings may begin here
        self._shown = 0

    @property
    def text(self) -> str:
        """The text that is certain to be in the output."""
        return self._text[: self._shown]

    def push(self, piece: str, *, search: bool = True) -> str:
        """Add a piece and return the text that has become certain.

        With `search=False` no stop string may begin in or before this piece.
        """
        seen = len(self._text)
        self._text += piece
        if not self._stops:
            return self._show(len(self._text))
        if not search:
            self._start = len(self._text)
        self._search(seen)
        held = 0 if self.hit else self._held()
        return self._show(len(self._text) - held)

    def flush(self) -> str:
        """Return the text held back; no more text will come."""
        return self._show(len(self._text))

    def _show(self, end: int) -> str:
        shown, self._shown = self._shown, max(self._shown, end)
        return self._text[shown : self._shown]

    def _search(self, seen: int) -> None:
        ends = []
        for stop in self._stops:
            begin = self._text.find(stop, max(self._start, seen - len(stop) + 1))
            if begin >= 0:
                ends.append((begin + len(stop), begin, stop))
        if ends:
            end, begin, self.hit = min(ends)
            self._text = self._text[: end if self._include else begin]

    def _held(self) -> int:
        """Return the length of the longest suffix of the text that begins a stop string."""
        tail = self._text[self._start :]
        lengths = (
            length
            for stop in self._stops
            for length in range(min(len(stop) - 1, len(tail)), 0, -1)
            if tail.endswith(stop[:length])
        )
        return max(lengths, default=0)
