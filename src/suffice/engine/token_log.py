"""Log probabilities of a step's tokens, computed for all of them at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from suffice import sampling
from suffice.engine.protocol import Tokenizer
from suffice.engine.request import Logprob, Request, Sample
from suffice.errors import InputError


class TokenLog:
    """The tokens chosen in a step for requests that ask for log probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._samples: list[Sample] = []
        self._logits: list[NDArray[np.float32]] = []
        self._tokens: list[int] = []
        self._counts: list[int] = []

    def add(self, sample: Sample, logits: NDArray[np.float32], token: int) -> None:
        """Note that a sample's token was chosen from logits [V]."""
        count = sample.request.params.logprobs
        if count is not None:
            self._samples.append(sample)
            self._logits.append(logits)
            self._tokens.append(token)
            self._counts.append(count)

    def write(self) -> Iterator[tuple[Request, InputError]]:
        """Give all samples the log probabilities of their tokens; yield the requests for which
        there are none, each with its error.
        """
        if not self._samples:
            return
        found = sampling.top_logprobs(self._logits, self._tokens, self._counts)
        for sample, entry in zip(self._samples, found, strict=True):
            if isinstance(entry, InputError):
                yield sample.request, entry
            else:
                sample.logprobs.append(self._texts(entry))

    def _texts(self, entry: sampling.TokenLogprobs) -> dict[int, Logprob]:
        places = {entry.token: (entry.logprob, entry.rank)}
        places |= {token: (value, at + 1) for at, (token, value) in enumerate(entry.top)}
        return {
            token: Logprob(value, rank, self._tokenizer.decode([token]))
            for token, (value, rank) in places.items()
        }
