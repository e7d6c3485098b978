"""What sampling computes, in NumPy; `rows` must give the same tokens and probabilities.

All arithmetic on logits is float32 and elementwise.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError
from suffice.sampling.rows import TokenLogprobs
from suffice.sampling.state import SamplingState, fault, uniform
from suffice.sampling_params import SamplingParams

Logits = NDArray[np.float32]
Weights = NDArray[np.int64]

WEIGHT_BITS = 42
EXP_COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def penalize(
    logits: Logits,
    counts: NDArray[np.float32],
    *,
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
) -> Logits:
    """Return the penalized logits of tokens that occur in the prompt or the output.

    `counts` has the same shape: how often each token was generated. The repetition penalty applies
    to all of them, the other two only to generated ones.
    """
    logits = np.where(logits > 0, logits / repetition, logits * repetition)
    generated = (counts > 0).astype(np.float32)
    penalized: Logits = logits - frequency * counts - presence * generated
    return penalized


def adjust(logits: Logits, state: SamplingState, mask: NDArray[np.uint32] | None = None) -> Logits:
    """Return one request's logits [V] after masks, bias and penalties; the input is not changed."""
    params = state.params
    barred = np.zeros(len(logits), bool)
    if params.allowed_token_ids is not None:
        barred[:] = True
        barred[list(params.allowed_token_ids)] = False
    barred[[token for token in _banned(state) if token < len(logits)]] = True
    if mask is not None:
        tokens = np.arange(len(logits))
        barred |= (mask[tokens // 32] >> (tokens % 32).astype(np.uint32) & 1) == 0
    logits = np.where(barred, np.float32(-math.inf), logits)
    for token, bias in (params.logit_bias or {}).items():
        logits[token] += bias
    if params.penalized:
        counts = {**dict.fromkeys(state.prompt, 0), **Counter(state.output)}
        seen = list(counts)
        logits[seen] = penalize(
            logits[seen],
            np.array(list(counts.values()), np.float32),
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
        )
    return logits


def _banned(state: SamplingState) -> set[int]:
    banned = {
        word[-1]
        for word in state.bad_words
        if len(word) == 1 or tuple(state.output[1 - len(word) :]) == word[:-1]
    }
    return banned | (state.stop_ids if len(state.output) < state.params.min_tokens else set())


def largest(values: Logits | Weights, count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` largest values [V], ascending; of equal ones the lowest."""
    order = np.argsort(-values, kind="stable")
    return np.sort(order[:count])


def exp(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return e**x for x in [-40, 0], within 2 units in the last place.

    Each operation rounds to float32, so that any CPU computes the same. e**x = 2**n * e**r with
    |r| <= ln(2) / 2; the polynomial of e**r is Cephes' (`expf`).
    """
    f = np.float32
    n = np.rint(x * f(1.44269504))
    r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p = np.full_like(r, f(EXP_COEFFICIENTS[0]))
    for coefficient in EXP_COEFFICIENTS[1:]:
        p = p * r + f(coefficient)
    power: NDArray[np.float32] = np.ldexp((p * (r * r) + r) + f(1), n.astype(np.int32))
    return power


def weigh(logits: Logits, top: np.float32, temperature: float) -> Weights:
    """Return the tokens' weights int64 [V]: their probabilities relative to that of logit `top`,
    the largest, times 2**42 and rounded.

    Sums of integers do not depend on their order. A token that is 2**43 times less likely than the
    most likely one is never sampled.
    """
    relative = exp(np.maximum((logits - top) / np.float32(temperature), np.float32(-40)))
    return np.rint(relative.astype(np.float64) * 2.0**WEIGHT_BITS).astype(np.int64)


def nucleus_size(weights: Weights, top_p: float) -> int:
    """Return how many of the largest weights [V] reach `top_p` of their sum; at least 1."""
    wanted = math.ceil(top_p * float(weights.sum()))
    sums = np.sort(weights)[::-1].cumsum()
    return 1 + int((sums[:-1] < wanted).sum())


def candidates(logits: Logits, params: SamplingParams) -> Weights:
    """Return the weights int64 [V] of the tokens that may be sampled, and 0 for all others.

    `logits` [V] are already adjusted and `params` must not be greedy. Top-k may come before the
    temperature, which keeps the order of the tokens.
    """
    kept = np.ones(len(logits), bool)
    if 0 < params.top_k < len(logits):
        kept[:] = False
        kept[largest(logits, params.top_k)] = True
    top = logits.max()
    if params.min_p > 0:
        scaled = (logits - top) / np.float32(params.temperature)
        kept &= scaled >= np.float32(math.log(params.min_p))
    weights = np.where(kept, weigh(logits, top, params.temperature), 0)
    if params.top_p < 1:
        nucleus = largest(weights, nucleus_size(weights, params.top_p))
        weights = np.where(np.isin(np.arange(len(weights)), nucleus), weights, 0)
    return weights


def weights_of(
    logits: Logits, state: SamplingState, mask: NDArray[np.uint32] | None = None
) -> Weights:
    """Return the weights int64 [V] in proportion to which the next token is sampled.

    Raises:
        InputError: The largest logit is not finite, or no token is allowed.
    """
    logits = adjust(logits, state, mask)
    token = int(logits.argmax())  # NaN counts as the largest
    if error := fault(float(logits[token]), mask is not None):
        raise error
    if state.params.greedy:
        return np.where(np.arange(len(logits)) == token, 1, 0)
    return candidates(logits, state.params)


def probabilities(
    logits: Logits, state: SamplingState, mask: NDArray[np.uint32] | None = None
) -> NDArray[np.float32]:
    """Return the distribution float32 [V] from which the next token is sampled.

    Raises:
        InputError: The largest logit is not finite, or no token is allowed.
    """
    weights = weights_of(logits, state, mask)
    return (weights / float(weights.sum())).astype(np.float32)


def draw(weights: Weights, number: float) -> int:
    """Return the first index at which the running sum of `weights` [V] exceeds `number` of it.

    `number` in [0, 1) has 53 bits: the comparison is exact.
    """
    sums = weights.cumsum()
    part = int(number * 2**53) * int(sums[-1]) >> 53
    return int(np.searchsorted(sums, part, side="right"))


def sample(
    logits: Logits, state: SamplingState, mask: NDArray[np.uint32] | None = None
) -> int | InputError:
    """Return the next token after logits [V], or the error that ends the request."""
    try:
        weights = weights_of(logits, state, mask)
    except InputError as error:
        return error
    return draw(weights, uniform(state.seed, state.index, len(state.output)))


def top_logprobs(logits: Logits, token: int, count: int) -> TokenLogprobs:
    """Return the log probability and rank of `token` and of the `count` most likely tokens, from
    float64 sums.

    `logits` [V] are the model's own, before any adjustment.
    """
    relative = logits.astype(np.float64) - float(logits.max())
    values = relative - math.log(np.exp(relative).sum())
    order = np.argsort(-relative, kind="stable")[:count].tolist()
    rank = 1 + int((relative > relative[token]).sum())
    top = [(each, float(values[each])) for each in order]
    return TokenLogprobs(token, float(values[token]), rank, top)
