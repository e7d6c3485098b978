"""Log probabilities of a step's tokens, computed for all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice import sampling
from suffice.engine.protocol import Tokenizer
from suffice.engine.request import Logprob, Request, Sample
from suffice.errors import InputError


class TokenLog:
    """The tokens of a step whose log probabilities are asked for: chosen ones, and of prompts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._places: list[tuple[Request, list[Any]]] = []  # where each one's are to go
        self._logits: list[NDArray[np.float32]] = []
        self._tokens: list[int] = []
        self._counts: list[int] = []

    def add(self, sample: Sample, logits: NDArray[np.float32], token: int) -> None:
        """Note that a sample's token was chosen from logits [V]."""
        count = sample.request.params.logprobs
        if count is not None:
            self._add(sample.request, sample.logprobs, logits, token, count)

    def add_prompt(self, request: Request, logits: NDArray[np.float32]) -> None:
        """Note the logits [rows, V] of a part of a prompt; the first row gives the first token that
        has no score yet. The row of the prompt's last token gives no token of the prompt.
        """
        scores, count = request.scores, request.params.prompt_logprobs
        if scores is None or count is None:
            return
        for row, token in zip(logits, request.tokens[len(scores) :], strict=False):
            self._add(request, scores, row, token, count)

    def _add(
        self,
        request: Request,
        place: list[Any],
        logits: NDArray[np.float32],
        token: int,
        count: int,
    ) -> None:
        self._places.append((request, place))
        self._logits.append(logits)
        self._tokens.append(token)
        self._counts.append(count)

    def write(self) -> Iterator[tuple[Request, InputError]]:
        """Give all tokens their log probabilities; yield the requests for which there are none,
        each with its error.
        """
        if not self._places:
            return
        found = sampling.top_logprobs(self._logits, self._tokens, self._counts)
        for (request, place), entry in zip(self._places, found, strict=True):
            if isinstance(entry, InputError):
                yield request, entry
            else:
                place.append(self._texts(entry))

    def _texts(self, entry: sampling.TokenLogprobs) -> dict[int, Logprob]:
        places = {entry.token: (entry.logprob, entry.rank)}
        places |= {token: (value, at + 1) for at, (token, value) in enumerate(entry.top)}
        return {
            token: Logprob(value, rank, self._tokenizer.decode([token]))
            for token, (value, rank) in places.items()
        }
