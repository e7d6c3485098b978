"""From logits to tokens, for all rows of a step at once.

The order is vLLM's. Returned log probabilities are computed first, from the model's own
distribution. Then

    allowed_token_ids, bad_words, min_tokens, mask    masks
    logit_bias                                        added
    repetition, frequency, presence penalty           see `reference.penalize`
    temperature, top_k, min_p, top_p                  not for greedy sampling

and the token is sampled: the cumulative distribution, in the order of token ids, is inverted at a
uniform number that depends only on the request's seed, the sample and the position (`uniform`).
Ties always go to the lowest token id. `reference` says all of it in NumPy.

A row's result depends on that row only, so the same seed gives the same tokens in any batch, with
any number of threads and any instruction set. Logits are float32 and differences of them are
divided by the temperature in float32. Each token's weight is an integer, so sums are exact in any
order (`reference.weigh`).
"""

from __future__ import annotations

from suffice.sampling.rows import TokenLogprobs, probabilities, sample, top_logprobs
from suffice.sampling.state import Constraint, SamplingState, draw, uniform
from suffice.sampling_params import SamplingParams

__all__ = [
    "Constraint",
    "SamplingParams",
    "SamplingState",
    "TokenLogprobs",
    "draw",
    "probabilities",
    "sample",
    "top_logprobs",
    "uniform",
]
