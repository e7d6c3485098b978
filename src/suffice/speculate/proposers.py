"""What several speculators make drafts with: indices of texts, and chains of a model's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from suffice.errors import InputError
from suffice.sampling import SamplingState, draw, probabilities, sample
from suffice.speculate import DraftingSample
from suffice.speculate.acceptance import draft_number
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
    """Drafts that follow from a sample's text alone: keeps an index of its prompt and output."""

    def __init__(self, new: Callable[[], Index]) -> None:
        self._new = new

    def propose(self, samples: Sequence[DraftingSample], most: Sequence[int]) -> list[Tree]:
        """Return drafts that continue each sample's text, at most so many tokens for each."""
        return [
            self._index(sample).propose(count) if count > 0 else NO_DRAFTS
            for sample, count in zip(samples, most, strict=True)
        ]

    def forget(self, sample: DraftingSample) -> None:
        """Let the index go."""
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
    """Chains that a model makes, token by token.

    One for each of some samples, of at most `most` tokens, chosen as their texts are.
    """

    def __init__(self, states: Sequence[SamplingState], most: Sequence[int]) -> None:
        self._states = states
        self._most = most
        self._tokens: list[list[int]] = [[] for _ in states]
        self._probs: list[list[torch.Tensor]] = [[] for _ in states]

    def draft(self, at: int, logits: torch.Tensor) -> int | None:
        """Add a token to a sample's chain, of logits float32 [V]; return it if more may follow."""
        state = self._states[at].ahead(self._tokens[at])
        if state.params.greedy:
            token = sample(logits[None], [state])[0]
            if isinstance(token, InputError):  # the model that is drafted for has its own say
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
