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

import torch

from suffice.sampling import SamplingState, draw, probabilities, uniform

_ACCEPT = 1  # streams of random numbers: 0 is that of tokens, these accept the first, second, ...
_DRAFT = 1 << 32


def draft_number(state: SamplingState, position: int) -> float:
    """Return the random number in [0, 1) by which the token at a position is drafted."""
    return uniform(state.seed, state.index, position, _DRAFT)


def choose(
    target_probs: torch.Tensor,
    drafts: Sequence[int],
    draft_probs: torch.Tensor,
    number: Callable[[int], float],
) -> int:
    """Return the next token, of distribution `target_probs` [V].

    `drafts` were sampled from `draft_probs` [V] without replacement, in their order. `number` gives
    a random number in [0, 1) for each stream; the drafts depend on none of these numbers.
    """
    left, draft = target_probs.double(), draft_probs.to(torch.float64, copy=True)
    for at, token in enumerate(drafts):
        if number(_ACCEPT + at) * float(draft[token]) < float(left[token]):
            return token
        rest = (left - draft).clamp(min=0)
        # If nothing is left, both are equal up to rounding, and the draft would be accepted.
        left = rest / rest.sum() if rest.sum() > 0 else left
        draft[token] = 0
        if draft.sum() <= 0:  # no other token could have been drafted
            break
        draft /= draft.sum()
    return draw(left, number(0))


def next_token(
    logits: torch.Tensor, state: SamplingState, drafts: Sequence[int], draft_probs: torch.Tensor
) -> int:
    """Return the token after the text from the target's logits float32 [V], given sampled drafts.

    Raises:
        InputError: The logits are not numbers, or no token is allowed.
    """
    number = partial(uniform, state.seed, state.index, len(state.output))
    return choose(probabilities(logits, state), drafts, draft_probs, number)
