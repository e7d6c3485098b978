"""Chains of drafts that a model makes, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from suffice.errors import InputError
from suffice.sampling import SamplingState, draw, probabilities, sample
from suffice.speculate.acceptance import draft_number
from suffice.speculate.tree import Tree


class Chains:
    """A chain for each of some samples, of at most `most` tokens, chosen as their texts are."""

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
