"""Drafts that follow from a sample's text alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from suffice.speculate import Drafted
from suffice.speculate.tree import NO_DRAFTS, Tree


class Index(Protocol):
    """A text, looked at from its end."""

    @property
    def length(self) -> int:
        """Tokens that the text has."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        ...

    def propose(self, most: int) -> Tree:
        """Return what may follow, at most `most` >= 1 tokens."""
        ...


class FromText:
    """Keeps an index of each sample's prompt and output."""

    def __init__(self, new: Callable[[], Index]) -> None:
        self._new = new

    def propose(self, samples: Sequence[Drafted], most: Sequence[int]) -> list[Tree]:
        """Return drafts that continue each sample's text, at most so many tokens for each."""
        return [
            self._index(sample).propose(count) if count > 0 else NO_DRAFTS
            for sample, count in zip(samples, most, strict=True)
        ]

    def forget(self, sample: Drafted) -> None:
        """Let the index go."""
        sample.drafter = None

    def _index(self, sample: Drafted) -> Index:
        state = sample.state
        if sample.drafter is None:
            sample.drafter = self._new()
            sample.drafter.extend(state.prompt)
        index: Index = sample.drafter
        index.extend(state.output[index.length - len(state.prompt) :])
        return index
