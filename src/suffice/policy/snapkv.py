"""Keep the prompt tokens that the end of the prompt attends to.

    A = softmax(scale Q K^T) of the last `window` tokens over all T, causal, in float32
    s = pool(mean of A over the window and the heads that share keys), of the T - window first
    kept: the `budget` - window tokens with the largest s, and the window

Each key/value head chooses once, after the prompt; decoded tokens are kept. Blocks of 16 of the
kept tokens before the window are ranked by their largest s, and techniques that stop early read
them in that order, after the newer ones (ART, section 3.3). `rank_only` ranks and evicts nothing.

Source   Li et al., "SnapKV: LLM Knows What You Are Looking for Before Generation", Listing 1.
         Window 32 and pooling 5 by the maximum are those of ART, Table 5.
Differs  The listing sums the window's weights, which gives the same order, and repeats shared keys
         per query head; here a key/value head chooses by the mean over its query heads. A prompt
         with fewer new tokens than the window is its own window.
Exact    ratio = 1.
Cost     attention of `window` queries to the prompt, and a copy of the kept rows.
Example  snapkv:ratio=0.25
Options
    window  last tokens of the prompt; they choose, and they are kept
    kernel  neighbouring tokens that are pooled into one score, an odd number
    pool    how they are pooled: max or avg
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.cache import BLOCK
from suffice.errors import InputError, unknown
from suffice.policy.choice import Budgeted, block_order, evict_except, evict_unseen, heaviest
from suffice.policy.observation import Observed

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache
    from suffice.policy import Windows

POOLS = ("max", "avg")


@dataclass(frozen=True)
class SnapKV(Budgeted):
    """Keeps tokens that the end of the prompt attends to."""

    window: int = 32
    kernel: int = 5
    pool: str = "max"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InputError(f"{self.name()}: window={self.window}: must be at least 1 token")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise InputError(f"{self.name()}: kernel={self.kernel}: must be odd and at least 1")
        if self.pool not in POOLS:
            raise unknown(f"{self.name()} pool", self.pool, POOLS)
        super().__post_init__()

    @classmethod
    def exact_limit(cls) -> SnapKV:
        """Return the setting that keeps everything."""
        return cls(ratio=1.0)

    @property
    def at_prompt(self) -> bool:
        """Whether the selection is made from a prompt: always."""
        return True

    @property
    def watches(self) -> bool:
        """Whether the choice depends on a prompt's queries: yes."""
        return True

    def least(self) -> int:
        """Return the window."""
        return self.window

    def least_is(self) -> str:
        """Return the meaning of the smallest budget."""
        return "the window"

    def budgets(self, prompt: int, layers: int) -> list[int]:
        """Return the number of prompt tokens kept by each layer without a sliding window."""
        return [min(self.tokens(prompt), prompt)] * layers

    def select(self, scores: np.ndarray, count: int) -> np.ndarray:
        """Return the rows [G, count], ascending, that are kept by scores [G, T - w]."""
        groups, before = scores.shape
        window = np.tile(np.arange(before, before + self.window), (groups, 1))
        return np.concatenate((heaviest(scores, count - self.window), window), axis=-1)

    def watch(self, cache: KVCache, windows: Windows, scale: float) -> Observed:
        """Return an observer that stores the last queries of a prompt."""
        return Observed(self.window, scale)

    def after_prompt(self, cache: KVCache, windows: Windows, watch: Any) -> None:
        """Evict or order rows by the attention of the last tokens."""
        free = [layer for layer, window in enumerate(windows) if window is None]
        for layer, budget in zip(free, self.budgets(cache.length, len(free)), strict=True):
            scores = watch.scores(cache, layer, self.kernel, self.pool)
            if not self.rank_only and budget < cache.held(layer):
                kept = self.select(scores, budget)
                evict_except(cache, layer, kept)
                scores = np.take_along_axis(scores, kept[:, : budget - self.window], axis=-1)
            order = block_order(scores, BLOCK)
            if order.shape[1]:
                cache.rank(layer, order)
        if not self.rank_only:
            evict_unseen(cache, windows)
