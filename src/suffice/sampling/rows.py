"""Rows of logits to tokens, natively: all rows in one call, spread over the threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError
from suffice.native import core
from suffice.sampling.state import SamplingState, fault, uniform


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's log probability and rank (1 = most likely), and the most likely tokens in order,
    each with its log probability.
    """

    token: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


def sample(
    logits: NDArray[np.float32],
    states: Sequence[SamplingState],
    masks: NDArray[np.uint32] | None = None,
    maxima: NDArray[np.float32] | None = None,
) -> list[int | InputError]:
    """Return the next token of each request, or the error that ends that request.

    `logits` float32 [B, V] are the model's, `states` those of the B requests. `masks` uint32
    [B, >= V / 32] say in bits which tokens are allowed: token t has bit t % 32 of word t // 32.
    What the states' constraints exclude is excluded as well. `maxima` [B, V / 64, rounded up] are
    those of each 64 logits, if they are known: then most logits need not be read.
    """
    masks = _constrained(logits.shape[1], states, masks)
    numbers = np.array([0.0 if state.params.greedy else _number(state) for state in states])
    tokens = np.zeros(len(states), np.int32)
    largest = np.empty(len(states), np.float32)
    native = [state.native for state in states]
    core.sample_rows(logits, native, masks, numbers, tokens, largest, maxima)
    chosen: list[int | InputError] = tokens.tolist()
    if np.isfinite(largest).all():
        return chosen
    rows = zip(chosen, largest.tolist(), states, strict=True)
    masked = masks is not None
    return [fault(most, masked, state.constraint) or token for token, most, state in rows]


def _constrained(
    vocabulary: int, states: Sequence[SamplingState], masks: NDArray[np.uint32] | None
) -> NDArray[np.uint32] | None:
    """Return masks [B, >= V / 32] with the states' constraints; None if nothing is masked."""
    if all(state.constraint is None for state in states):
        return masks
    found = np.full((len(states), -(-vocabulary // 32)), 2**32 - 1, np.uint32)
    for row, state in zip(found, states, strict=True):
        if state.constraint is not None:
            state.constraint.fill(row)
    return found if masks is None else found & masks[:, : found.shape[1]]


def _number(state: SamplingState) -> float:
    return uniform(state.seed, state.index, len(state.output))


def probabilities(
    logits: NDArray[np.float32], state: SamplingState, mask: NDArray[np.uint32] | None = None
) -> NDArray[np.float32]:
    """Return the distribution float32 [V] from which the next token is sampled.

    `logits` float32 [V] are the model's. With greedy sampling one token has probability 1. `mask`
    is a row of `sample`'s.

    Raises:
        InputError: The largest logit is not finite, or no token is allowed.
    """
    probs, largest = np.empty_like(logits), np.empty(1, np.float32)
    masks = _constrained(len(logits), [state], None if mask is None else mask[None])
    core.probability_rows(logits[None], [state.native], masks, probs, largest)
    if error := fault(float(largest[0]), masks is not None, state.constraint):
        raise error
    return probs


def top_logprobs(
    logits: Sequence[NDArray[np.float32]], tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs | InputError]:
    """Return the log probability of a token after each row of logits, and those of the `counts`
    most likely tokens there.

    Rows float32 [V] are the model's own, before any adjustment. A row whose largest logit is not
    finite gives an error.
    """
    rows, most = len(logits), max(counts, default=0)
    chosen, ranks = np.empty(rows), np.empty(rows, np.int32)
    ids, values = np.empty((rows, most), np.int32), np.empty((rows, most))
    wanted = np.array([tokens, counts], np.int32)
    core.top_logprobs(logits, wanted[0], wanted[1], chosen, ranks, ids, values)
    found: list[TokenLogprobs | InputError] = []
    for at, (token, count) in enumerate(zip(tokens, counts, strict=True)):
        if error := None if ranks[at] else fault(float(logits[at].max())):
            found.append(error)
            continue
        top = zip(ids[at, :count].tolist(), values[at, :count].tolist(), strict=True)
        found.append(TokenLogprobs(token, float(chosen[at]), int(ranks[at]), list(top)))
    return found
