"""From logits to a token.

The order is vLLM's. Returned log probabilities are computed first, from the model's own
distribution. Then

    allowed_token_ids, bad_words, min_tokens   masks
    logit_bias                                 added
    repetition, frequency, presence penalty    see `penalize`
    temperature, min_p, top_k, top_p           not for greedy sampling

and the token is sampled: the cumulative distribution, in the order of token ids, is inverted at a
uniform number that depends only on the request's seed, the sample and the position (`uniform`).
Each request is computed from its own row of logits only, so the same seed gives the same tokens in
any batch. Ties always go to the lowest token id.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from suffice.errors import InputError
from suffice.sampling_params import SamplingParams

__all__ = [
    "SamplingParams",
    "SamplingState",
    "adjust",
    "argmax",
    "candidates",
    "draw",
    "largest",
    "nucleus_size",
    "penalize",
    "probabilities",
    "sample",
    "top_logprobs",
    "uniform",
]


@dataclass
class SamplingState:
    """State of one sample of a request, as sampling needs it.

    `prompt` and `output` are token ids. `stop_ids` are the tokens that end the generation,
    `bad_words` the forbidden sequences of token ids. `index` is the sample's number among `n`.
    """

    params: SamplingParams
    seed: int
    index: int = 0
    prompt: Sequence[int] = ()
    output: list[int] = field(default_factory=list)
    stop_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    _counts: dict[int, int] | None = field(default=None, repr=False)

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.output.append(token)
        if self._counts is not None:
            self._counts[token] = self._counts.get(token, 0) + 1

    def ahead(self, tokens: Sequence[int]) -> SamplingState:
        """Return the state after these tokens, without changing this one."""
        return replace(self, output=[*self.output, *tokens], _counts=None)

    def counts(self) -> dict[int, int]:
        """Return {token: times generated} for all tokens of prompt and output."""
        if self._counts is None:
            self._counts = {**dict.fromkeys(self.prompt, 0), **Counter(self.output)}
        return self._counts

    @property
    def adjusts(self) -> bool:
        """Whether the logits are changed before the token is chosen."""
        params = self.params
        return bool(
            params.penalized
            or params.logit_bias
            or params.allowed_token_ids
            or self.bad_words
            or len(self.output) < params.min_tokens
        )


def uniform(seed: int, sample: int, position: int, stream: int = 0) -> float:
    """Return a number in [0, 1) that depends only on the arguments.

    `position` counts the generated tokens; `stream` distinguishes several samples for one token. A
    hash of a counter has no state, so rejected drafts leave no trace.
    """
    counter = struct.pack("<4Q", seed, sample, position, stream)
    digest = hashlib.blake2b(counter, digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 11) * 2.0**-53)


def penalize(
    logits: torch.Tensor,
    counts: torch.Tensor,
    *,
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
) -> torch.Tensor:
    """Return the penalized logits of tokens that occur in the prompt or the output.

    `counts` has the same shape: how often each token was generated. The repetition penalty applies
    to all of them, the other two only to generated ones.
    """
    logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    return logits - frequency * counts - presence * (counts > 0)


def adjust(logits: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """Return one request's logits [V] after masks, bias and penalties; the input is not changed."""
    if not state.adjusts:
        return logits
    params = state.params
    if params.allowed_token_ids is None:
        logits = logits.clone()
    else:
        allowed = torch.tensor(params.allowed_token_ids)
        logits = torch.full_like(logits, -math.inf).index_copy(0, allowed, logits[allowed])
    logits[_banned(state)] = -math.inf
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias))
        logits[ids] += torch.tensor(list(params.logit_bias.values()), dtype=logits.dtype)
    if params.penalized:
        seen = torch.tensor(list(state.counts()))
        logits[seen] = penalize(
            logits[seen],
            torch.tensor(list(state.counts().values())),
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
        )
    return logits


def _banned(state: SamplingState) -> torch.Tensor:
    banned = {
        word[-1]
        for word in state.bad_words
        if len(word) == 1 or tuple(state.output[1 - len(word) :]) == word[:-1]
    }
    if len(state.output) < state.params.min_tokens:
        banned |= state.stop_ids
    return torch.tensor(sorted(banned), dtype=torch.int64)


def argmax(logits: torch.Tensor) -> list[int]:
    """Return the index of the largest logit of each row [B, V], the first of equal ones.

    NaN counts as the largest. numpy takes a tenth of torch's time for this.
    """
    return [int(index) for index in logits.numpy().argmax(-1)]


def largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the `count` largest values [V], in ascending order of index."""
    array = values.numpy()
    bound = np.partition(array, -count)[-count]
    ids = np.flatnonzero(array >= bound)
    if len(ids) > count:
        last_ties = np.flatnonzero(array[ids] == bound)[count - len(ids) :]
        ids = np.delete(ids, last_ties)
    return torch.from_numpy(ids)


def nucleus_size(probs: torch.Tensor, top_p: float) -> int:
    """Return how many of the largest `probs` [V] are needed for a sum of `top_p`; at least 1."""
    ascending = torch.from_numpy(np.sort(probs.numpy()))
    sums = ascending.flip(0).double().cumsum(0)
    return 1 + int((sums[:-1] < top_p).sum())


def candidates(
    logits: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the ids of the tokens that may be sampled, ascending, and their probabilities.

    `logits` [V] are already adjusted and `params` must not be greedy. Ids of None mean all tokens.
    Top-k runs first because it leaves less work. The result is the same: temperature keeps the
    order of the tokens, and top-k and min-p each keep the most likely ones.
    """
    ids: torch.Tensor | None = None
    if 0 < params.top_k < len(logits):
        ids = largest(logits, params.top_k)
        logits = logits[ids]
    scaled = (logits - logits.max()) / params.temperature
    if params.min_p > 0:
        kept = (scaled >= math.log(params.min_p)).nonzero()[:, 0]
        ids, scaled = kept if ids is None else ids[kept], scaled[kept]
    probs = scaled.softmax(-1)
    if params.top_p < 1:
        kept = largest(probs, nucleus_size(probs, params.top_p))
        ids, probs = kept if ids is None else ids[kept], probs[kept]
        probs = probs / probs.sum()
    return ids, probs


def probabilities(logits: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """Return the distribution float32 [V] from which the next token is sampled.

    `logits` float32 [V] are the model's. With greedy sampling one token has probability 1.

    Raises:
        InputError: The largest logit is not finite, or no token is allowed.
    """
    logits = adjust(logits, state)
    (token,) = argmax(logits[None])
    if fault := _fault(float(logits[token])):
        raise fault
    probs = torch.zeros_like(logits)
    if state.params.greedy:
        probs[token] = 1
        return probs
    ids, kept = candidates(logits, state.params)
    return kept if ids is None else probs.index_copy(0, ids, kept)


def draw(probs: torch.Tensor, number: float) -> int:
    """Return the first index at which the running sum of `probs` [V] exceeds `number` * their sum.

    `number` is in [0, 1).
    """
    sums = probs.double().cumsum(0)
    total = sums[-1:]
    # number * total may round up to total, so limit the index to the last one with a probability.
    last = torch.searchsorted(sums, total)
    return int(torch.minimum(torch.searchsorted(sums, number * total, right=True), last))


def sample(logits: torch.Tensor, states: Sequence[SamplingState]) -> list[int | InputError]:
    """Return the next token of each request, or the error that ends that request.

    `logits` float32 [B, V] are the model's, `states` those of the B requests. If all requests are
    greedy and none adjusts its logits, this is one argmax.
    """
    if all(state.params.greedy and not state.adjusts for state in states):
        tokens = argmax(logits)
        rows = zip(logits, tokens, strict=True)
        return [_fault(float(row[token])) or token for row, token in rows]
    return [_sample_one(row, state) for row, state in zip(logits, states, strict=True)]


def _sample_one(logits: torch.Tensor, state: SamplingState) -> int | InputError:
    logits = adjust(logits, state)
    (token,) = argmax(logits[None])
    if fault := _fault(float(logits[token])):
        return fault
    if state.params.greedy:
        return token
    ids, probs = candidates(logits, state.params)
    index = draw(probs, uniform(state.seed, state.index, len(state.output)))
    return index if ids is None else int(ids[index])


def _fault(largest_logit: float) -> InputError | None:
    if math.isfinite(largest_logit):
        return None
    if largest_logit == -math.inf:
        return InputError(
            "no token is left to choose: allowed_token_ids, bad_words and "
            "min_tokens exclude them all"
        )
    return InputError(f"the model's largest logit is {largest_logit}: its weights may be damaged")


def top_logprobs(
    logits: torch.Tensor, token: int, count: int
) -> tuple[list[tuple[int, float]], int]:
    """Return (token id, log probability) of `token` and then of the `count` most likely tokens, and
    the rank of `token` (1 = most likely).

    `logits` [V] are the model's own, before any adjustment.
    """
    values = logits.float().log_softmax(-1)
    ids = largest(values, count) if count else torch.empty(0, dtype=torch.int64)
    ids = ids[values[ids].argsort(descending=True, stable=True)]
    chosen = values[token]
    rank = 1 + int((values > chosen).sum())
    pairs = [(token, float(chosen)), *zip(ids.tolist(), values[ids].tolist(), strict=True)]
    return pairs, rank
