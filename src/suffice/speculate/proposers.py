"""Proposers that several speculators share: indices of texts, and trees of a model's tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError, brief
from suffice.outside import reported
from suffice.sampling import SamplingState, probabilities, sample
from suffice.speculate import DraftedTokens, DraftingSample, GoesOn, Proposer
from suffice.speculate.acceptance import draft_number
from suffice.speculate.tree import NO_DRAFTS, Tree, Widths


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

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return drafts that continue each sample's text, as many as shape i has or fewer."""
        return [
            self._index(sample).propose(sum(shape)) if shape else NO_DRAFTS
            for sample, shape in zip(samples, shapes, strict=True)
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


class Checked:
    """The proposer of a speculator from outside: its drafts are checked, its failures one line.

    `name` is the speculator's, and `vocabulary` the number of the model's tokens.
    """

    def __init__(self, proposer: Proposer, name: str, vocabulary: int) -> None:
        self._proposer = proposer
        self._name = f"speculator '{name}'"
        self._vocabulary = vocabulary

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return what the proposer drafts.

        Raises:
            InputError: It raises an exception, or returns no list of a tree for each sample.
        """
        with reported(f"{self._name} fails"):
            found = self._proposer.propose(samples, shapes)
        if not isinstance(found, list) or len(found) != len(samples):
            raise InputError(
                f"{self._name}: propose returns {brief(found)}: must be a list of a Tree for "
                f"each sample, here {len(samples)}"
            )
        for tree in found:
            if not isinstance(tree, Tree) or not tree.follows_text(self._vocabulary):
                raise InputError(
                    f"{self._name}: propose returns {brief(tree)}: must be a Tree of tokens "
                    f"below {self._vocabulary}, each with a parent before it"
                )
        return found

    def forget(self, sample: DraftingSample) -> None:
        """Free the drafting state of a sample that has ended.

        Raises:
            InputError: The proposer raises an exception.
        """
        with reported(f"{self._name} fails"):
            self._proposer.forget(sample)


class Drafting:
    """Trees that a model drafts depth by depth, one for each sample.

    Tree i has at most `shapes[i][d]` siblings at depth d, all from the logits after the first
    siblings of the depths before: the most likely tokens, or tokens drawn without replacement, by
    the sample's own sampling parameters. It ends before its shape where `goes_on[i]`, if given,
    says so of the probabilities of the chain so far.

    `drafted` says which tokens the logits are of; None: of all.
    """

    def __init__(
        self,
        states: Sequence[SamplingState],
        shapes: Sequence[Widths],
        goes_on: Sequence[GoesOn | None] = (),
        drafted: DraftedTokens | None = None,
    ) -> None:
        self._states = states
        self._shapes = shapes
        self._goes_on = goes_on or [None] * len(states)
        self._drafted = drafted
        self._levels: list[list[list[int]]] = [[] for _ in states]
        self._probs: list[list[NDArray[np.float32]]] = [[] for _ in states]
        self._sure: list[list[list[float]]] = [[] for _ in states]

    @classmethod
    def of(
        cls,
        samples: Sequence[DraftingSample],
        shapes: Sequence[Widths],
        drafted: DraftedTokens | None = None,
    ) -> Drafting:
        """Return the drafting of samples in a step."""
        goes_on = [sample.goes_on for sample in samples]
        return cls([sample.state for sample in samples], shapes, goes_on, drafted)

    def draft(
        self, at: int, logits: NDArray[np.float32], drafted: DraftedTokens | None = None
    ) -> int | None:
        """Add a depth to tree `at` from logits float32 [D], of the tokens `drafted` if given.

        Returns the token whose logits the next depth needs; None if there is no next depth.
        """
        state, shape, levels = self._states[at], self._shapes[at], self._levels[at]
        drafted = self._drafted if drafted is None else drafted
        if state.names_tokens:
            state = state.ahead([level[0] for level in levels])
            if drafted is not None:
                logits, drafted = drafted.spread(logits, -np.inf), None
        width, position = shape[len(levels)], len(self._states[at].output) + len(levels)
        if state.params.greedy:
            places = _most_likely(logits, state, width)
            sure = _sure(logits, places)
        else:
            try:
                probs = probabilities(logits, state)
            except InputError:
                return None
            places = _drawn(probs, state, position, width)
            sure = [float(probs[place]) for place in places]
            self._probs[at].append(probs if drafted is None else drafted.spread(probs, 0))
        if not places:
            return None
        tokens = places if drafted is None else [int(drafted.ids[place]) for place in places]
        levels.append(tokens)
        self._sure[at].append(sure)
        more = len(levels) < len(shape) and self._pays(at)
        return tokens[0] if more else None

    def _pays(self, at: int) -> bool:
        goes_on = self._goes_on[at]
        return goes_on is None or goes_on([sure[0] for sure in self._sure[at]])

    def trees(self) -> list[Tree]:
        """Return the trees."""
        return [
            Tree.levels(levels, probs or None, sure or None)
            for levels, probs, sure in zip(self._levels, self._probs, self._sure, strict=True)
        ]


def _most_likely(logits: NDArray[np.float32], state: SamplingState, count: int) -> list[int]:
    """Return the places of up to `count` logits, each as greedy sampling would choose it without
    those before.

    There are fewer if no other is allowed, or the logits are no numbers: the target model reports
    its own errors.
    """
    found: list[int] = []
    for _ in range(count):
        if found:
            logits = logits.copy() if len(found) == 1 else logits
            logits[found[-1]] = -np.inf
        place = _largest(logits, state)
        if place is None:
            break
        found.append(place)
    return found


def _largest(logits: NDArray[np.float32], state: SamplingState) -> int | None:
    if state.names_tokens:
        token = sample(logits[None], [state])[0]
        return None if isinstance(token, InputError) else token
    place = int(logits.argmax())
    return place if math.isfinite(logits[place]) else None


def _sure(logits: NDArray[np.float32], places: Sequence[int]) -> list[float]:
    """Return the probabilities that logits give at places; 0 if these are no numbers."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(logits - logits.max())
    total = float(powers.sum())
    return [float(powers[place]) / total if total > 0 else 0.0 for place in places]


def _drawn(
    probs: NDArray[np.float32], state: SamplingState, position: int, count: int
) -> list[int]:
    """Return up to `count` places drawn from `probs` without replacement, for a token's position.

    All are found in one running sum, as `sampling.draw` finds the first: each later one by its
    place in what is left, moved beyond the tokens that are gone.
    """
    sums = probs.cumsum(dtype=np.float64)
    last = int(np.searchsorted(sums, sums[-1]))
    found: list[int] = []
    gone: list[tuple[float, float]] = []  # where they begin and end in the sum, ascending
    for rank in range(count):
        left = float(sums[-1]) - sum(end - begin for begin, end in gone)
        place = draft_number(state, position, rank) * left
        for begin, end in gone:
            if place >= begin:
                place = max(place + (end - begin), end)
        token = min(int(np.searchsorted(sums, place, side="right")), last)
        if token in found:  # no other can be drawn
            break
        found.append(token)
        gone = sorted([*gone, (float(sums[token - 1]) if token else 0.0, float(sums[token]))])
    return found
