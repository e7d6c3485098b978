"""Base classes of policies: one that keeps everything, and one with a budget.

Options
    budget     tokens that are kept, or for quest read
    ratio      the same as a share of the prompt's tokens, at least the smallest budget; without
               either: 0.5
    rank_only  evict nothing, only order what techniques that stop early read
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.errors import InputError
from suffice.registry import spelling

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache
    from suffice.policy import QueryObserver, Windows

RATIO = 0.5  # default share of a prompt's tokens
EVERYTHING = 1 << 30  # tokens: more than any context


class KeepAll:
    """A policy that leaves nothing out; see `Policy` for the members."""

    @property
    def chooses(self) -> bool:
        """Whether any tokens are left out or reordered."""
        return False

    @property
    def by_query(self) -> bool:
        """Whether each query selects its own tokens."""
        return False

    @property
    def evicts(self) -> bool:
        """Whether tokens are lost."""
        return False

    @property
    def at_prompt(self) -> bool:
        """Whether the budget comes from a prompt."""
        return False

    @property
    def needs_whole_softmax(self) -> bool:
        """Whether attention must compute every weight."""
        return False

    @property
    def one_by_one(self) -> bool:
        """Whether steps have one token."""
        return False

    @property
    def watches(self) -> bool:
        """Whether the choice depends on the queries of a whole prompt."""
        return False

    @property
    def keeps(self) -> tuple[str, ...]:
        """Return the additional data that the cache must keep."""
        return ()

    def prepare(self, cache: KVCache, windows: Windows) -> None:
        """Set up a new cache."""

    def watch(self, cache: KVCache, windows: Windows, scale: float) -> QueryObserver | None:
        """Return None: no observer."""
        return None

    def after_prompt(self, cache: KVCache, windows: Windows, watch: Any) -> None:
        """Select after a prompt."""

    def after_step(self, cache: KVCache) -> None:
        """Select after a step."""


@dataclass(frozen=True)
class Budgeted(KeepAll):
    """A policy with a budget: `budget` tokens, or the share `ratio` of the prompt's (default 0.5).

    `rank_only`: evict nothing, only set the order of reading.
    """

    budget: int | None = None
    ratio: float | None = field(default=None, metadata=spelling(alone=True))
    rank_only: bool = False

    def __post_init__(self) -> None:
        name = self.name()
        if self.budget is not None and self.ratio is not None:
            raise InputError(
                f"{name}: budget={self.budget} and ratio={self.ratio}: give only one of them"
            )
        if self.rank_only and (self.budget is not None or self.ratio is not None):
            raise InputError(
                f"{name}: rank_only=true keeps everything: give no budget and no ratio"
            )
        if self.budget is not None and self.budget < self.least():
            raise InputError(
                f"{name}: budget={self.budget}: must be at least {self.least()} tokens, "
                f"{self.least_is()}"
            )
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise InputError(f"{name}: ratio={self.ratio}: must be above 0 and at most 1")

    @classmethod
    def name(cls) -> str:
        """Return the policy's name."""
        return cls.__name__.lower()

    def least(self) -> int:
        """Return the smallest budget, in tokens."""
        raise NotImplementedError

    def least_is(self) -> str:
        """Return the meaning of the smallest budget, for messages."""
        raise NotImplementedError

    @property
    def chooses(self) -> bool:
        """Whether any tokens are left out or reordered."""
        return True

    @property
    def evicts(self) -> bool:
        """Whether tokens are lost."""
        return not self.rank_only

    @property
    def at_prompt(self) -> bool:
        """Whether the budget comes from a prompt."""
        return self.budget is None

    def tokens(self, prompt: int) -> int:
        """Return the budget in tokens after a prompt; a ratio gives at least `least()`."""
        if self.budget is not None:
            return self.budget
        ratio = RATIO if self.ratio is None else self.ratio
        return prompt if ratio == 1 else max(int(ratio * prompt), self.least())


def evict_unseen(cache: KVCache, windows: Windows) -> None:
    """Evict rows of layers with a sliding window that no later token sees: keep window - 1."""
    for layer, window in enumerate(windows):
        if window is not None and cache.held(layer) >= window > 1:
            evict_except(cache, layer, last_rows(cache, layer, 0, window - 1))


def last_rows(cache: KVCache, layer: int, first: int, last: int) -> np.ndarray:
    """Return the first `first` and the last `last` rows of a layer, [G, first + last]."""
    held = cache.held(layer)
    rows = np.concatenate((np.arange(first), np.arange(held - last, held)))
    return np.tile(rows, (cache.heads(layer), 1))


def evict_except(cache: KVCache, layer: int, rows: np.ndarray) -> None:
    """Evict all rows of a layer but `rows` [G, n], if it holds more."""
    if rows.shape[1] < cache.held(layer):
        cache.evict(layer, rows)


def heaviest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` rows with the largest scores [G, n], ascending; ties go to the older."""
    order = np.argsort(-scores, axis=-1, kind="stable")
    return np.sort(order[:, :count], axis=-1)


def block_order(scores: np.ndarray, block: int) -> np.ndarray:
    """Return the order of the complete blocks of rows with scores [G, n], largest score first."""
    groups, rows = scores.shape
    blocks = scores[:, : rows // block * block].reshape(groups, rows // block, block).max(-1)
    return np.argsort(-blocks, axis=-1, kind="stable")
