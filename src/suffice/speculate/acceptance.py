"""Accepts drafts so that the text has the distribution of decoding without drafts.

Source   Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", section 2.3
         and appendix A.1 (chains; there p is the target's distribution and q the draft's); Chen et
         al., "Sequoia", Algorithm 1 (several children, sampled without replacement).

A draft that was not sampled has draft probability 1. It is accepted with its probability under the
target; if rejected, the token comes from the target's distribution without it. That is equivalent
to sampling from the target's distribution, as without drafts, and checking whether the token was
drafted; this also gives the same tokens for the same seed. Only sampled drafts need `choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from suffice.sampling import SamplingState, draw, probabilities, uniform

_ACCEPT = 1  # streams of random numbers: 0 is that of tokens, these accept the first, second, ...
_DRAFT = 1 << 32


def draft_number(state: SamplingState, position: int, rank: int = 0) -> float:
    """Return the random number in [0, 1) by which sibling `rank` at a position is drafted."""
    return uniform(state.seed, state.index, position, _DRAFT + rank)


def choose(
    target_probs: NDArray[np.floating],
    drafts: Sequence[int],
    draft_probs: NDArray[np.floating],
    number: Callable[[int], float],
) -> int:
    """Return the next token, of distribution `target_probs` [V].

    `drafts` were sampled from `draft_probs` [V] without replacement, in their order. `number` gives
    a random number in [0, 1) for each stream; the drafts depend on none of these numbers.
    """
    left, draft = target_probs, draft_probs
    for at, token in enumerate(drafts):
        if number(_ACCEPT + at) * float(draft[token]) < float(left[token]):
            return token
        rest = np.maximum(np.subtract(left, draft, dtype=np.float64), 0)
        # If nothing is left, both are equal up to rounding, and the draft would be accepted.
        left = rest / _sum(rest) if rest.any() else left
        if at + 1 == len(drafts):
            break
        others = draft.astype(np.float64)
        others[token] = 0
        if not others.any():  # no other token could have been drafted
            break
        draft = others / _sum(others)
    return draw(left, number(0))


def _sum(probs: NDArray[np.float64]) -> float:
    return float(probs.cumsum()[-1])  # in one order on every CPU, which `sum` does not promise


def next_token(
    logits: NDArray[np.float32],
    state: SamplingState,
    drafts: Sequence[int],
    draft_probs: NDArray[np.floating],
) -> int:
    """Return the token after the text, from the target's logits float32 [V] and sampled drafts.

    Raises:
        InputError: The logits are not numbers, or no token is allowed.
    """
    number = partial(uniform, state.seed, state.index, len(state.output))
    return choose(probabilities(logits, state), drafts, draft_probs, number)
