"""Keep the first tokens and the most recent ones.

    a token sees the first `sinks` tokens and the last budget - sinks, its own included

Rows are evicted as they fall out of sight, from the prompt on. Eviction moves whole blocks, in
place, and waits until an eighth of the held rows are dead, so no step copies the cache. Positions
are those of the text, not of the cache; the context stays that of the model. `rank_only` evicts
nothing and reads the sinks first, so that techniques that stop early always read them.

Source   Xiao et al., "Efficient Streaming Language Models with Attention Sinks", section 3.2.
Differs  The paper counts positions within the cache.
Exact    a budget of at least the context.
Cost     none but the rows that are read.
Native   csrc/attention/traversal.cpp, csrc/cache/evict.cpp
Example  streaming:budget=1024,sinks=4
Options
    sinks  first tokens, always kept
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suffice.errors import InputError
from suffice.policy.choice import EVERYTHING, Budgeted, evict_except, evict_unseen, last_rows

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache
    from suffice.policy import Windows


@dataclass(frozen=True)
class Streaming(Budgeted):
    """Sinks and a window."""

    sinks: int = 4

    def __post_init__(self) -> None:
        if self.sinks < 0:
            raise InputError(f"streaming: sinks={self.sinks}: must be at least 0 tokens")
        super().__post_init__()

    @classmethod
    def exact_limit(cls) -> Streaming:
        """Return the setting that keeps everything."""
        return cls(budget=EVERYTHING)

    @property
    def one_by_one(self) -> bool:
        """Whether steps have one token: yes, because the steps decide when rows move."""
        return not self.rank_only

    def least(self) -> int:
        """Return the number of sinks plus 1, for the token itself."""
        return self.sinks + 1

    def least_is(self) -> str:
        """Return the meaning of the smallest budget."""
        return "the sinks and one more"

    def seen(self, token: int, budget: int) -> list[int]:
        """Return the tokens that a token sees, its own included."""
        recent = budget - self.sinks
        return [s for s in range(token + 1) if s < self.sinks or s > token - recent]

    def prepare(self, cache: KVCache, windows: Windows) -> None:
        """Set sinks and window, if they are known."""
        if self.rank_only:
            for layer, window in enumerate(windows):
                if window is None:
                    cache.set_visible(layer, sinks=self.sinks)
        elif self.budget is not None:
            self._limit(cache, windows, self.budget)

    def after_prompt(self, cache: KVCache, windows: Windows, watch: Any) -> None:
        """Evict the rows between sinks and window."""
        if self.rank_only:
            return
        budget = self.tokens(cache.length)
        self._limit(cache, windows, budget)
        for layer, window in enumerate(windows):
            if window is None and budget < cache.held(layer):
                evict_except(cache, layer, last_rows(cache, layer, self.sinks, budget - self.sinks))
        evict_unseen(cache, windows)

    def _limit(self, cache: KVCache, windows: Windows, budget: int) -> None:
        for layer, window in enumerate(windows):
            if window is None:
                cache.set_visible(layer, sinks=self.sinks, recent=budget - self.sinks)
            elif window:
                cache.set_visible(layer, recent=window)
