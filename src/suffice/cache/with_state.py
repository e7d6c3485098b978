"""The cache of a text for an assistant, which drafts from hidden states and from the text's rows.

The assistant has no rows of its own: it needs the model's hidden states of the last token alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from suffice.cache.kv import KVCache


class CacheWithState(KVCache):
    """A cache, and the hidden states that the model has at its last token, if steps handed them."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._hidden: np.ndarray | None = None
        self._at = 0  # the length of the text whose last token has them
        self._handed: tuple[int, np.ndarray] | None = None  # tentative rows, and the last ones'

    @property
    def hidden(self) -> np.ndarray | None:
        """The hidden states float32 [H] of the last token; None: they are not known."""
        return self._hidden if self._at == self.length else None

    def hand_over(self, tokens: list[int], hidden: np.ndarray) -> None:
        """Take the tentative rows' tokens, and the hidden states float32 [T, H] of the last T."""
        self._handed = len(tokens), hidden

    def commit(self, path: list[int]) -> None:
        """Commit as any cache does; keep what was handed over of the path's last row."""
        handed = self._handed
        super().commit(path)
        if not path:
            return
        rows, hidden = handed or (0, np.empty((0, 0), np.float32))
        row = path[-1] - rows + len(hidden)
        self._hidden = hidden[row].copy() if 0 <= row < len(hidden) else None
        self._at = self.length

    def rollback(self) -> None:
        """Drop all tentative rows."""
        self._handed = None
        super().rollback()
