"""Proposers that several speculators share: indices of texts, and chains of a model's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError
from suffice.sampling import SamplingState, draw, probabilities, sample
from suffice.speculate import DraftingSample
from suffice.speculate.acceptance import draft_number
from suffice.speculate.tree import NO_DRAFTS, Tree


class Index(Protocol):
    """A text, searched for what may follow its end."""

    @property
    def length(self) -> int:
        """The number of tokens in the text."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        ...

    def propose(self, most: int) -> Tree:
        """Return drafts that continue the text, at most `most` >= 1 tokens."""
        ...


class FromText:
    """Drafts from a sample's text alone; keeps an index of its prompt and output."""

    def __init__(self, new: Callable[[], Index]) -> None:
        self._new = new

    def propose(self, samples: Sequence[DraftingSample], most: Sequence[int]) -> list[Tree]:
        """Return drafts that continue each sample's text, at most `most[i]` tokens for sample i."""
        return [
            self._index(sample).propose(count) if count > 0 else NO_DRAFTS
            for sample, count in zip(samples, most, strict=True)
        ]

    def forget(self, sample: DraftingSample) -> None:
        """Free the index."""
        sample.drafter = None

    def _index(self, sample: DraftingSample) -> Index:
        state = sample.state
        if sample.drafter is None:
            sample.drafter = self._new()
            sample.drafter.extend(state.prompt)
        index: Index = sample.drafter
        index.extend(state.output[index.length - len(state.prompt) :])
        return index


class Chains:
    """Chains that a model drafts token by token, one for each sample.

    Chain i has at most `most[i]` tokens, chosen by the sample's own sampling parameters.
    """

    def __init__(self, states: Sequence[SamplingState], most: Sequence[int]) -> None:
        self._states = states
        self._most = most
        self._tokens: list[list[int]] = [[] for _ in states]
        self._probs: list[list[NDArray[np.float32]]] = [[] for _ in states]

    def draft(self, at: int, logits: NDArray[np.float32]) -> int | None:
        """Add a token to chain `at` from logits float32 [V]; return it unless the chain is full."""
        state = self._states[at].ahead(self._tokens[at])
        if state.params.greedy:
            token = sample(logits[None], [state])[0]
            if isinstance(token, InputError):  # no draft; the target model reports its own errors
                return None
        else:
            try:
                probs = probabilities(logits, state)
            except InputError:
                return None
            token = draw(probs, draft_number(state, len(state.output)))
            self._probs[at].append(probs)
        self._tokens[at].append(token)
        return token if len(self._tokens[at]) < self._most[at] else None

    def trees(self) -> list[Tree]:
        """Return the chains."""
        return [
            Tree.chain(tokens, probs or None)
            for tokens, probs in zip(self._tokens, self._probs, strict=True)
        ]
