"""A matrix of low rank by the token before a draft, which is added to the logits of a block's rows.

Source: Cheng et al. 2026, DSpark, of the Markov head; files as those of DeepSeek's DeepSpec.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffice.speculate import DraftedTokens

MOST_LIKELY = 64  # tokens of a row that its addend may choose among; a few more in some rows


@dataclass(frozen=True)
class Markov:
    """What is added to the logit of token b after token a: the product of rows a and b.

    `before` [V, R] has the rows of the token before, and `own` [V, R] those of the token itself, as
    they are stored.
    """

    before: NDArray[np.generic]
    own: NDArray[np.generic]

    def after(
        self, token: int, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], DraftedTokens]:
        """Return the logits [D] after `token` of a row's most likely tokens, and which these are.

        `logits` float32 [V] are the row's. Where these are no numbers, so are those that it gives.
        """
        kept = _most_likely(logits)
        added = self.own[kept].astype(np.float32) @ self.before[token].astype(np.float32)
        return logits[kept] + added, DraftedTokens(kept, len(logits))


def _most_likely(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the `MOST_LIKELY` tokens of the largest logits in ascending order, or a few more.

    They are those that reach a bound: of the largest logits of equal parts of the vocabulary, the
    one of that rank, since finding it among all takes longer than the drafts of a small model.
    """
    each = max(len(logits) // MOST_LIKELY**2, 1)
    parts = len(logits) // each
    largest = logits[: each * parts].reshape(each, parts).max(axis=0)
    rank = max(parts - MOST_LIKELY, 0)
    return np.flatnonzero(~(logits < np.partition(largest, rank)[rank]))
