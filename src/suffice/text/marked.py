"""Text in which some tokens are one character each, so that they are told from text like theirs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from suffice.dialects.dialect import FIRST_SIGN, MOST_SIGNS

_SIGNS = re.compile(f"[{chr(FIRST_SIGN)}-{chr(FIRST_SIGN + MOST_SIGNS - 1)}]")
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """Turns tokens into text as they arrive."""

    def push(self, token: int) -> str:
        """Return the text that is certain by now."""
        ...

    def flush(self) -> str:
        """Return the remaining text."""
        ...


class MarkedDecoder:
    """A decoder in whose text the marked tokens are U+FDD0 and the characters after it.

    Unicode reserves these for programs; where a model spells one, it becomes U+FFFD.
    """

    def __init__(self, new: Callable[[], Decoder], marked: Sequence[int]) -> None:
        self._new = new
        self._signs = {token: chr(FIRST_SIGN + at) for at, token in enumerate(marked)}
        self._decoder = new()

    def push(self, token: int) -> str:
        """Return the text that is certain by now."""
        sign = self._signs.get(token)
        if sign is None:
            return self._plain(self._decoder.push(token))
        before = self.flush()
        self._decoder = self._new()
        return before + sign

    def flush(self) -> str:
        """Return the remaining text."""
        return self._plain(self._decoder.flush())

    @staticmethod
    def _plain(text: str) -> str:
        return text if text.isascii() else _SIGNS.sub(_BROKEN, text)
