"""Keep the tokens with the most attention so far and the most recent ones.

    S[s] = sum over queries of the softmax weight of token s, from the prompt's first token on
    after each token, with n held: if n > heavy + recent, the lightest of the first n - recent goes

S is per key/value head, summed over the heads that share it, and updated by the decode step.
`heavy` is half of the budget, rounded down, `recent` the rest. Of equally heavy tokens the one that
was heavy for longer stays; among heavy ones, the later one. `rank_only` evicts nothing: blocks of
16 tokens are ranked by their heaviest token after the prompt.

Source   Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large
         Language Models", Algorithm 1. As in the authors' code, a prompt runs whole and is evicted
         from at its end.
Exact    a budget of at least the context.
Cost     a second pass over a prompt's scores, quadratic in its length. Decoding reads one float32
         per row and moves one row per head and token.
Native   csrc/attention/weight_sums.cpp, csrc/cache/evict.cpp
Example  h2o:ratio=0.25
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.cache import BLOCK
from suffice.policy.choice import (
    EVERYTHING,
    Budgeted,
    block_order,
    evict_except,
    evict_unseen,
    heaviest,
)
from suffice.policy.observation import weight_sums

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache
    from suffice.policy import Windows

WAITING = 256  # queries that are scored together


class Accumulated:
    """A `QueryObserver` that sums the attention mass of every token of a prompt."""

    def __init__(self, cache: KVCache, windows: Windows, scale: float) -> None:
        self._cache = cache
        self._windows = windows
        self._scale = scale
        self._waiting: dict[int, np.ndarray] = {}
        self._masses: dict[int, np.ndarray] = {}

    def add(self, layer: int, q: np.ndarray, end: int) -> None:
        """Add the masses of queries [H, T, D]; see `QueryObserver`."""
        if self._windows[layer] is not None:
            return
        waiting = np.concatenate((self._waiting.get(layer, q[:, :0]), q), axis=1)
        # Whole parts, so that sums are rounded alike however the prompt was cut.
        while waiting.shape[1] >= WAITING:
            part, waiting = waiting[:, :WAITING], waiting[:, WAITING:]
            self._weigh(layer, part, end - waiting.shape[1])
        self._waiting[layer] = waiting

    def masses(self, layer: int) -> np.ndarray:
        """Return the attention masses of the tokens in a layer, [G, T]."""
        rest = self._waiting.pop(layer, None)
        if rest is not None and rest.shape[1]:
            self._weigh(layer, rest, self._cache.length)
        return self._masses[layer]

    def _weigh(self, layer: int, q: np.ndarray, end: int) -> None:
        """Add the masses of the queries q [H, w, D] of the last w tokens before `end`."""
        masses = weight_sums(self._cache, layer, q, end, self._scale)
        if layer in self._masses:
            masses[:, : self._masses[layer].shape[1]] += self._masses[layer]
        self._masses[layer] = masses


@dataclass(frozen=True)
class H2O(Budgeted):
    """Heavy hitters and a window."""

    @classmethod
    def exact_limit(cls) -> H2O:
        """Return the setting that keeps everything."""
        return cls(budget=EVERYTHING)

    @property
    def needs_whole_softmax(self) -> bool:
        """Whether attention must compute every weight: yes, they are summed."""
        return not self.rank_only

    @property
    def one_by_one(self) -> bool:
        """Whether steps have one token: yes, each may evict a row before the next."""
        return not self.rank_only

    @property
    def keeps(self) -> tuple[str, ...]:
        """Return the additional data that the cache must keep."""
        return () if self.rank_only else ("masses",)

    @property
    def watches(self) -> bool:
        """Whether the choice depends on a prompt's queries: yes."""
        return True

    def least(self) -> int:
        """Return 2: a heavy token and a recent one."""
        return 2

    def least_is(self) -> str:
        """Return the meaning of the smallest budget."""
        return "a heavy and a recent one"

    def select(self, masses: np.ndarray, budget: int) -> np.ndarray:
        """Return the rows [G, budget], ascending, that are kept by their masses [G, T]."""
        groups, rows = masses.shape
        recent = budget - budget // 2
        last = np.tile(np.arange(rows - recent, rows), (groups, 1))
        return np.concatenate((heaviest(masses[:, : rows - recent], budget // 2), last), axis=-1)

    def prepare(self, cache: KVCache, windows: Windows) -> None:
        """Set the sizes of both sets, if the budget is known."""
        if not self.rank_only and self.budget is not None:
            self._limit(cache, windows, self.budget)

    def watch(self, cache: KVCache, windows: Windows, scale: float) -> Accumulated:
        """Return an observer that sums the masses of a prompt."""
        return Accumulated(cache, windows, scale)

    def after_prompt(self, cache: KVCache, windows: Windows, watch: Any) -> None:
        """Evict or order rows by the masses of the prompt's tokens."""
        budget = self.tokens(cache.length)
        if not self.rank_only:
            self._limit(cache, windows, budget)
        for layer, window in enumerate(windows):
            if window is not None:
                continue
            masses = watch.masses(layer)
            if not self.rank_only:
                cache.set_masses(layer, masses)
                if budget < cache.held(layer):
                    evict_except(cache, layer, self.select(masses, budget))
            elif masses.shape[1] >= BLOCK:
                cache.rank(layer, block_order(masses, BLOCK))
        if not self.rank_only:
            evict_unseen(cache, windows)

    def after_step(self, cache: KVCache) -> None:
        """Evict the row of least mass."""
        if not self.rank_only:
            cache.keep_heavy()

    def _limit(self, cache: KVCache, windows: Windows, budget: int) -> None:
        for layer, window in enumerate(windows):
            if window is None:
                # A token is added before the lightest row is evicted, so it sees one row more.
                cache.set_visible(layer, sinks=budget // 2, recent=budget - budget // 2 + 1)
            elif window:
                cache.set_visible(layer, recent=window)
