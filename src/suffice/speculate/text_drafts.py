"""Drafts that texts make next to a model's, for the samples for which they are used."""

from __future__ import annotations

from collections.abc import Sequence

from suffice.speculate import DraftingSample, Speculator
from suffice.speculate.proposers import FromText
from suffice.speculate.suffix import Suffix, SuffixAutomaton
from suffice.speculate.tree import NO_DRAFTS, Tree

MOST_OF_TEXT = Suffix.num_speculative_tokens  # of a text in a step


def texts_draft(speculator: Speculator) -> bool:
    """Return whether texts draft next to a speculator's model: only where their number adapts."""
    return speculator.text and speculator.adaptive


class TextDrafts:
    """What the texts of a step's samples draft, as `suffix` does, and which of it is used.

    `on`: whether texts are to be looked up.
    """

    def __init__(self, on: bool) -> None:
        self.on = on
        self._texts = FromText(lambda: SuffixAutomaton(Suffix()))
        self._found: dict[int, Tree] = {}  # by sample
        self._used: set[int] = set()

    def look_up(self, samples: Sequence[DraftingSample], room: Sequence[int]) -> None:
        """Begin a step: look up drafts for each sample, at most `room[i]` for sample i."""
        self._used = set()
        found = self._texts.propose(samples, [(1,) * most for most in room])
        self._found = dict(zip(map(id, samples), found, strict=True))

    def of(self, sample: DraftingSample) -> Tree:
        """Return what was found for a sample, used or not."""
        return self._found.get(id(sample), NO_DRAFTS)

    def use(self, sample: DraftingSample) -> None:
        """Use what was found for a sample in this step."""
        self._used.add(id(sample))

    def uses(self, sample: DraftingSample) -> bool:
        """Return whether it is used."""
        return id(sample) in self._used

    def __bool__(self) -> bool:
        return bool(self._used)
