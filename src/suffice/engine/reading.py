"""What is read off a prompt when nothing is generated: an embedding, or how likely tokens are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffice.decoder.pooling import Pool, Pooling
from suffice.errors import InputError, OptionError


@dataclass(frozen=True)
class Reading:
    """What a request reads off its prompt.

    Attributes:
        tokens: Token ids, whose log probabilities after the prompt are read, in this order. Without
            any, the prompt's embedding is.
        dimensions: How many entries an embedding keeps, its first; None: all.
        normalize: Whether it is normalized; None: as the model has it.
    """

    tokens: tuple[int, ...] = ()
    dimensions: int | None = None
    normalize: bool | None = None

    def check(self, pooling: Pooling) -> None:
        """Refuse more entries than there are, and what a model has not: embeddings, or a head.

        Raises:
            InputError: One of these.
        """
        if not (self.tokens or pooling.size):
            raise InputError("the model projects its last states: it gives no embeddings")
        if self.dimensions is not None and not 1 <= self.dimensions <= pooling.size:
            must = f"must be from 1 to {pooling.size}, the entries of this model's embeddings"
            raise OptionError("dimensions", self.dimensions, must)
        if self.tokens and pooling.headless:
            raise InputError("the model has no head: it embeds texts, and knows no next token")


class Reader:
    """Reads one prompt of `count` tokens as its rows come, in order and in parts of any size.

    `result` float32 is there at the end: [dimensions] of an embedding, else [tokens].
    """

    def __init__(self, reading: Reading, pooling: Pooling, count: int) -> None:
        self.result: NDArray[np.float32] | None = None
        self._reading, self._pooling, self._count = reading, pooling, count
        self._pool = Pool(pooling.mode)
        self._logits: NDArray[np.float32] | None = None

    @property
    def states(self) -> bool:
        """Whether it reads states, not logits."""
        return not self._reading.tokens

    @property
    def settled(self) -> int:
        """The rows of the prompt, from the first, that it does not need, or has read."""
        done = self._pool.rows if self.states and self._pooling.whole else self._count
        return min(done, self._count - 1)

    @property
    def encoded(self) -> bytes | None:
        """The result as little-endian float32; None as long as there is none."""
        return None if self.result is None else self.result.astype("<f4").tobytes()

    def take(self, rows: NDArray[np.float32]) -> None:
        """Take the states or logits of the rows that follow the settled ones."""
        if not self.states:
            self._logits = rows[-1] if len(rows) else self._logits
        elif not self._pooling.whole or self._pool.rows < self._count:
            self._pool.add(rows)

    def end(self) -> None:
        """Make the result.

        Raises:
            InputError: What was read is not finite.
        """
        if self.states:
            own = self._reading
            self.result = self._pooling.embedding(self._pool.value, own.dimensions, own.normalize)
        else:
            assert self._logits is not None, "the last row has logits"
            self.result = _log_probabilities(self._logits, self._reading.tokens)


def _log_probabilities(logits: NDArray[np.float32], tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return the logarithms of the softmax of logits [V] at some tokens."""
    exact = logits.astype(np.float64)
    largest = exact.max()
    if not np.isfinite(largest):
        raise InputError(f"the model's largest logit is {largest:g}: its weights may be damaged")
    total = largest + np.log(np.exp(exact - largest).sum())
    found: NDArray[np.float32] = (exact[list(tokens)] - total).astype(np.float32)
    return found
