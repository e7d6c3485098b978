"""What may follow while a model thinks: anything, up to a budget; a grammar comes after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from suffice.sampling import Constraint

_TAIL = 24  # tokens that may hold a mark that is text


@dataclass(frozen=True)
class Thinking:
    """How an answer begins, and the limit of its thinking.

    Attributes:
        begun: Whether the prompt has begun the thinking.
        open: The token that begins it; None if none does.
        close: The text that ends it, as tokens.
        budget: Tokens after which it is ended; None for no limit.
        within: Whether the grammar that the answer obeys describes the thinking, too: where text
            ends it, a token may hold both the end of that text and the answer's beginning.
    """

    begun: bool
    open: int | None
    close: tuple[int, ...]
    budget: int | None = None
    within: bool = False


class Thought:
    """The state of an answer: its thinking is free, what follows obeys `then`."""

    def __init__(
        self,
        facts: Thinking,
        then: Constraint | None,
        ends: frozenset[int],
        decode: Callable[[list[int]], str],
    ) -> None:
        """Begin; `ends` are the tokens that end a text, which no thinking with a `then` does."""
        self._facts, self._then = facts, then
        self._ends = sorted(ends) if then is not None else []
        self._decode = decode
        self._close = decode(list(facts.close))
        self._tail: list[int] = []
        self._forced: list[int] = []
        self._count = 0
        self._thinks = facts.begun
        self._first = not facts.begun  # the next token may begin it
        if facts.begun:
            self._limit()

    @property
    def fault(self) -> str:
        """See `Constraint`."""
        return "" if self._thinks or self._then is None else self._then.fault

    def fill(self, words: NDArray[np.uint32]) -> None:
        """See `Constraint`."""
        if self._forced:
            words[:] = 0
            _allow(words, self._forced[0])
        elif self._then is None or (self._thinks and not self._facts.within):
            words[:] = 0xFFFFFFFF
            if self._thinks:
                for token in self._ends:
                    words[token >> 5] &= ~np.uint32(1 << (token & 31))
        else:
            self._then.fill(words)
            if self._first and self._facts.open is not None:
                _allow(words, self._facts.open)

    def advance(self, token: int) -> None:
        """See `Constraint`."""
        first, self._first = self._first, False
        thought = self._thinks
        if thought:
            self._think(token)
        elif token == self._facts.open and (first or self._then is None):  # it thinks (again)
            thought = self._thinks = True
            self._limit()
        if self._then is not None and (self._facts.within or not thought):
            self._then.advance(token)

    def _think(self, token: int) -> None:
        if self._forced:
            self._forced.pop(0)
            self._thinks = bool(self._forced)
            return
        self._count += 1
        self._tail = [*self._tail[1 - _TAIL :], token]
        if len(self._facts.close) == 1:
            self._thinks = token != self._facts.close[0]
        else:
            self._thinks = self._close not in self._decode(self._tail)
        if self._thinks:
            self._limit()

    def _limit(self) -> None:
        budget = self._facts.budget
        if budget is not None and self._count >= budget:
            self._forced = list(self._facts.close)


def _allow(words: NDArray[np.uint32], token: int) -> None:
    words[token >> 5] |= np.uint32(1 << (token & 31))
