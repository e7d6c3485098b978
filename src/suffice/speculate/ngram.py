"""Prompt lookup: draft what followed the last tokens earlier in the text.

Source   Saxena, "Prompt Lookup Decoding"; option names are those of vLLM's method "ngram".
Differs  The source takes the first earlier occurrence, this the last. A copy that reaches the end
         of the text continues with its own beginning, so loops are drafted whole.
Exact    always: every draft is checked.
Cost     one table entry for each length and token.
Options
    num_speculative_tokens  maximum number of drafts in a step
    adaptive                draft fewer, or none, while drafts do not save time
    prompt_lookup_max       most last tokens that are looked up
    prompt_lookup_min       fewest last tokens that are looked up
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from suffice.errors import InputError
from suffice.registry import spelling
from suffice.speculate import DraftSource, ReadsNoKeys
from suffice.speculate.tree import NO_DRAFTS, Tree, check_drafts

if TYPE_CHECKING:
    from suffice.speculate.proposers import FromText


@dataclass(frozen=True)
class NGram(ReadsNoKeys):
    """Drafts from the longest match of `prompt_lookup_max` to `prompt_lookup_min` last tokens."""

    from_text: ClassVar[bool] = True
    text: ClassVar[bool] = False
    width: ClassVar[int] = 1

    num_speculative_tokens: int = field(default=8, metadata=spelling(alone=True))
    adaptive: bool = True  # check only the drafts that save time
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1

    def __post_init__(self) -> None:
        check_drafts("ngram", self.num_speculative_tokens)
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise InputError(
                f"speculator 'ngram': prompt_lookup_min={self.prompt_lookup_min} and "
                f"prompt_lookup_max={self.prompt_lookup_max}: must be at least 1, and the maximum "
                "not below the minimum"
            )

    @classmethod
    def exact_limit(cls) -> NGram:
        """Return any setting."""
        return cls()

    def proposer(self, models: DraftSource) -> FromText:
        """Return the proposer."""
        from suffice.speculate.proposers import FromText

        return FromText(lambda: LastPlaces(self.prompt_lookup_min, self.prompt_lookup_max))


class LastPlaces:
    """A text, and the last position of each sequence of `least` to `most` tokens in it."""

    def __init__(self, least: int, most: int) -> None:
        self._sizes = range(least, most + 1)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # position after the sequence

    @property
    def length(self) -> int:
        """The number of tokens in the text."""
        return len(self._text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        for token in tokens:
            for size in self._sizes:
                if size <= len(self._text):  # only now a token follows the sequence
                    self._after[tuple(self._text[-size:])] = len(self._text)
            self._text.append(token)

    def propose(self, most: int) -> Tree:
        """Return the tokens after an earlier occurrence of the text's longest matching suffix."""
        for size in reversed(self._sizes):
            place = self._after.get(tuple(self._text[-size:])) if size <= self.length else None
            if place is not None:
                return Tree.chain(self._copy(place, most), match=size)
        return NO_DRAFTS

    def _copy(self, place: int, count: int) -> list[int]:
        copied = self._text[place : place + count]
        period = self.length - place
        while len(copied) < count:
            copied.append(copied[-period])
        return copied
