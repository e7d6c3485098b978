"""Read for each query the blocks whose keys may score highest.

    u(q, block) = sum_d max(q_d min_d, q_d max_d) >= q . k for every key of the block
    read: the newest block and the budget / 16 - 1 others with the largest u

Nothing is evicted. Heads that share keys use the largest u among them. The first `dense_layers`
layers read everything. `rank_only` reads all blocks in the order of u, for techniques that stop
early.

Source   Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference",
         Algorithm 1, with its blocks of 16, two dense layers, and at least 3 blocks.
Exact    a budget of at least the context, up to rounding: blocks are read in another order.
Cost     stores and reads 2 D float32 per block, counted as metadata: 12.5 % of bfloat16 keys and
         values.
Native   csrc/cache/boxes.cpp, csrc/kernels/boxes.inl
Example  quest:budget=1024
Options
    dense_layers  first layers, which read everything
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.errors import InputError
from suffice.policy.choice import EVERYTHING, Budgeted

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache
    from suffice.policy import Windows

BLOCK = 16
LEAST_BLOCKS = 3


@dataclass(frozen=True)
class Quest(Budgeted):
    """Selects blocks for each query by the boxes of their keys."""

    dense_layers: int = 2

    def __post_init__(self) -> None:
        if self.dense_layers < 0:
            raise InputError(f"quest: dense_layers={self.dense_layers}: must be at least 0")
        super().__post_init__()

    @classmethod
    def exact_limit(cls) -> Quest:
        """Return the setting that reads everything."""
        return cls(budget=EVERYTHING)

    @property
    def evicts(self) -> bool:
        """Whether tokens are lost: no."""
        return False

    @property
    def by_query(self) -> bool:
        """Whether each query selects its own tokens: yes, in blocks."""
        return True

    @property
    def keeps(self) -> tuple[str, ...]:
        """Return the additional data that the cache must keep."""
        return ("boxes",)

    def least(self) -> int:
        """Return the rows of the fewest blocks."""
        return LEAST_BLOCKS * BLOCK

    def least_is(self) -> str:
        """Return the meaning of the smallest budget."""
        return f"{LEAST_BLOCKS} blocks of {BLOCK}"

    def select(self, q: np.ndarray, k: np.ndarray, blocks: int) -> list[int]:
        """Return the blocks of keys k [S, D] that a token of queries q [R, D] reads, in order.

        The R heads share the keys.
        """
        newest = (len(k) - 1) // BLOCK
        bounds = []
        for block in range(newest):
            keys = k[block * BLOCK : (block + 1) * BLOCK]
            low, high = keys.min(0), keys.max(0)
            bounds.append(float(np.maximum(q * low, q * high).sum(-1).max()))
        ranked = sorted(range(newest), key=lambda block: (-bounds[block], block))
        return [newest, *ranked[: blocks - 1]]

    def prepare(self, cache: KVCache, windows: Windows) -> None:
        """Set the budget, if it is known."""
        if self.rank_only or self.budget is not None:
            self._limit(cache, windows, self.budget or EVERYTHING)

    def after_prompt(self, cache: KVCache, windows: Windows, watch: Any) -> None:
        """Set the budget from the prompt's length."""
        if not self.rank_only and self.budget is None:
            self._limit(cache, windows, self.tokens(cache.length))

    def _limit(self, cache: KVCache, windows: Windows, budget: int) -> None:
        for layer, window in enumerate(windows):
            if window is None and layer >= self.dense_layers:
                cache.set_visible(layer, blocks=budget // BLOCK)
