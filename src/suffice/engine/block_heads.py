"""A head that drafts blocks for a runner's model: all drafts of a text in one step.

A block is the text's last token, which the model has not run yet, and masks after it. Its rows see
the head's rows of the text and, but for causal layers, each other; a mask's logits are of the token
in its place (DFlash), or every row's are of the token after it (DSpark). So they do not depend on
each other's tokens, but for what `Markov` adds. Blocks have the same number of rows whatever is
asked of them, and are dropped once they have been run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from suffice.cache import Growth
from suffice.cache.kv import KVCache
from suffice.cache.with_head import CacheWithHead
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.engine.heads import Follower
from suffice.speculate import DraftedTokens
from suffice.speculate.markov import Markov

if TYPE_CHECKING:
    from suffice.native import core


class BlockHead(Follower):
    """A head that drafts `drafts` tokens at once, with what `markov` adds; see `Drafter`."""

    def __init__(
        self,
        decoder: DecoderWeights,
        tokens: np.ndarray,
        layers: tuple[int, ...],
        positions: int,
        dtype: str,
        *,
        drafts: int,
        markov: Markov | None = None,
    ) -> None:
        own = decoder.config.drafts
        assert own is not None
        self.block_rows = drafts if own.ahead else 1 + drafts
        self._drafts, self._markov = drafts, markov
        super().__init__(decoder, tokens, layers, positions + self.block_rows, dtype)

    def kind(
        self, limit: int, growth: Growth, arena: core.Arena, *, late: bool
    ) -> Callable[..., KVCache]:
        """Return what makes the cache of a text of at most `limit` tokens; see `CacheWithHead`."""
        head = self.cache(limit + self.block_rows, growth, arena)
        return partial(CacheWithHead, head=head, late=late, block=self.block_rows)

    def ready(self, cache: CacheWithHead) -> bool:
        """Return whether it has followed a text long enough."""
        return self.has_begun(cache) and cache.followed

    def block(
        self, caches: Sequence[CacheWithHead], last: Sequence[int], depths: Sequence[int]
    ) -> list[np.ndarray]:
        """Return the logits of the first `depths[i]` drafts after the `last` token of each text.

        They are [depths[i], D], depth by depth. The rows that texts lack are made before; those of
        the blocks are tentative until `end`.
        """
        found = [(cache, cache.to_follow()) for cache in caches]
        own = [(cache, rows) for cache, rows in found if rows is not None]
        if own:
            self._follow([cache for cache, _ in own], [rows for _, rows in own], outputs=0)
        drafts = self.decoder.config.drafts
        assert drafts is not None
        masks = [drafts.mask] * (self.block_rows - 1)
        batch = [
            StepRows(
                cache.head,
                [token, *masks],
                outputs=depth,
                after=self._drafts - depth,
                exact=True,
                counted=False,
            )
            for cache, token, depth in zip(caches, last, depths, strict=True)
        ]
        logits = self._native.step(batch)
        return np.split(logits, np.cumsum(depths)[:-1])

    def after(self, token: int, logits: np.ndarray) -> tuple[np.ndarray, DraftedTokens | None]:
        """Return the logits of a draft after `token`, and the tokens that they are of.

        `logits` are those of its row. None: they are of all tokens.
        """
        return (logits, None) if self._markov is None else self._markov.after(token, logits)

    def end(self, caches: Sequence[CacheWithHead]) -> None:
        """Drop the rows of blocks."""
        for cache in caches:
            cache.head.rollback()
