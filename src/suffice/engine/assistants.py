"""An assistant drafts for a runner's model: it reads the caches of texts and stores nothing.

All of a step's drafts have one position, that of the text's last token: the model has not run it
yet, so that its rows are those of the tokens before. Each draft begins with hidden states, of the
model or what the assistant made of the draft before, and with the embedding of the last token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from suffice.backends.cpu.linear import multiply
from suffice.cache import Growth
from suffice.cache.kv import KVCache
from suffice.cache.with_state import CacheWithState
from suffice.decoder.step_rows import StepRows
from suffice.engine.heads import Drafter

if TYPE_CHECKING:
    from suffice.native import core


class Assistant(Drafter):
    """An assistant of a model, with the model's embedding; see `Drafter`."""

    row_bytes = block_rows = 0
    reads_prompts = False

    def kind(
        self, limit: int, growth: Growth, arena: core.Arena, *, late: bool
    ) -> Callable[..., KVCache]:
        """Return what makes the cache of a text."""
        return CacheWithState

    def ready(self, cache: CacheWithState) -> bool:
        """Return whether it can draft for a text."""
        return cache.hidden is not None

    def has_room(self, cache: CacheWithState) -> bool:
        """Return whether it can draft another token of a text: it takes no rows."""
        return True

    def follow(self, caches: Sequence[KVCache]) -> None:
        """Do nothing: it has no rows of texts."""

    def begin(self, caches: Sequence[CacheWithState], last: Sequence[int]) -> np.ndarray:
        """Return logits [B, D] after the `last` token of each text, which is not cached."""
        hidden = [cache.hidden for cache in caches]
        for cache, each in zip(caches, hidden, strict=True):
            assert each is not None, "the text's last hidden states are known"
            self._left[id(cache)] = each
        return self.go_on(caches, last)

    def go_on(self, caches: Sequence[CacheWithState], tokens: Sequence[int]) -> np.ndarray:
        """Return logits [B, D] after a token of each text that was drafted last."""
        hidden = np.stack([self._left[id(cache)] for cache in caches])
        batch = [
            StepRows(cache, [token], streams=1, exact=True, counted=False, reads_only=True)
            for cache, token in zip(caches, tokens, strict=True)
        ]
        states = np.empty((len(batch), 1, self.decoder.config.width), np.float32)
        logits = self._native.step(batch, streams=states, hidden=hidden)
        as_hidden = multiply(self.decoder.matrix("hand_on"), states[:, 0])
        for cache, each in zip(caches, as_hidden, strict=True):
            self._left[id(cache)] = each
        return logits

    def end(self, caches: Sequence[CacheWithState]) -> None:
        """Forget what drafts have left."""
        self._left = {}
