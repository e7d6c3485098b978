"""State of a request's sample, and random numbers that have none."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError
from suffice.native import core
from suffice.sampling_params import SamplingParams


class Constraint(Protocol):
    """What may follow the tokens so far, such as by a grammar."""

    def fill(self, words: NDArray[np.uint32]) -> None:
        """Write which tokens may come next, as in a row of `sample`'s masks."""

    def advance(self, token: int) -> None:
        """Go on to the state after a token."""

    @property
    def fault(self) -> str:
        """Why no token may come next, if that is a fault of the constraint's; else empty."""


@dataclass
class SamplingState:
    """State of one sample of a request, as sampling needs it.

    `prompt` and `output` are token ids; `append` adds to the output. `stop_ids` are the tokens that
    end the generation, `bad_words` the forbidden sequences of token ids. `index` is the sample's
    number among `n`. `constraint` says which tokens may come next, and is advanced with the output.
    """

    params: SamplingParams
    seed: int
    index: int = 0
    prompt: Sequence[int] = ()
    output: list[int] = field(default_factory=list)
    stop_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    constraint: Constraint | None = field(default=None, repr=False, compare=False)
    _native: core.SampleState | None = field(default=None, repr=False, compare=False)

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.output.append(token)
        if self.constraint is not None:
            self.constraint.advance(token)
        if self._native is not None:
            self._native.append([token])

    def ahead(self, tokens: Sequence[int]) -> SamplingState:
        """Return the state after these tokens, without changing this one.

        It has no constraint: it serves to draft tokens, which are checked under the constraint.
        """
        native = self.native.ahead(list(tokens))
        return replace(self, output=[*self.output, *tokens], constraint=None, _native=native)

    @property
    def names_tokens(self) -> bool:
        """Whether what may come, or how likely, depends on tokens beyond their logits."""
        params = self.params
        named = params.min_tokens or params.allowed_token_ids or params.logit_bias
        return bool(named or self.bad_words or self.constraint) or params.penalized

    @property
    def native(self) -> core.SampleState:
        """The extension's state, which counts tokens as they come; made at the first use."""
        if self._native is None:
            prompt = list(self.prompt) if self.params.penalized else []
            self._native = core.SampleState(self._rules(), prompt)
            self._native.append(self.output)
        return self._native

    def _rules(self) -> core.SamplingRules:
        params = self.params
        return core.SamplingRules(
            greedy=params.greedy,
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            log_min_p=math.log(params.min_p) if params.min_p > 0 else -math.inf,
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            min_tokens=params.min_tokens,
            stop_ids=sorted(self.stop_ids),
            bad_words=self.bad_words,
            allowed=params.allowed_token_ids or (),
            bias=list((params.logit_bias or {}).items()),
        )


def uniform(seed: int, sample: int, position: int, stream: int = 0) -> float:
    """Return a number in [0, 1) that depends only on the arguments, a multiple of 2**-53.

    `position` counts the generated tokens; `stream` distinguishes several samples for one token. A
    hash of a counter has no state, so rejected drafts leave no trace.
    """
    counter = struct.pack("<4Q", seed, sample, position, stream)
    digest = hashlib.blake2b(counter, digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 11) * 2.0**-53)


def draw(probs: NDArray[np.floating], number: float) -> int:
    """Return the first index at which the running sum of `probs` [V] exceeds `number` * their sum.

    `number` is in [0, 1).
    """
    sums = probs.cumsum(dtype=np.float64)
    # number * sum may round up to the sum, so limit the index to the last one with a probability.
    last = np.searchsorted(sums, sums[-1])
    return int(min(np.searchsorted(sums, number * sums[-1], side="right"), last))


def fault(
    largest_logit: float, masked: bool = False, constraint: Constraint | None = None
) -> InputError | None:
    """Return the error of a row with this largest logit after all masks; None if it has none.

    `masked` says whether a mask from outside, or of the constraint, was among them.
    """
    if math.isfinite(largest_logit):
        return None
    if largest_logit == -math.inf:
        if constraint is not None and constraint.fault:
            return InputError(constraint.fault)
        last = ", min_tokens and the mask" if masked else " and min_tokens"
        return InputError(
            f"no token is left to choose: allowed_token_ids, bad_words{last} exclude them all"
        )
    return InputError(f"the model's largest logit is {largest_logit}: its weights may be damaged")
