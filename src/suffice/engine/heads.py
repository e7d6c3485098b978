"""Heads that draft for a runner's model: they read the hidden states that the model's steps leave.

A `Follower` is a decoder of its own with a cache of its own for each text, see `CacheWithHead`: a
`Head`, or one that drafts blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from suffice.cache import Growth, token_bytes, types_of
from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.cache.with_head import CacheWithHead, HeadRows
from suffice.cache.with_state import CacheWithState
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.native import core
from suffice.speculate import DraftedTokens
from suffice.speculate.tree import FEW_ROWS


def hand_over(batch: Sequence[StepRows], streams: np.ndarray) -> None:
    """Give each text the hidden states [T, layers, W] of its rows in a step of the model."""
    first = 0
    for rows in batch:
        own = streams[first : first + rows.streams]
        first += rows.streams
        if isinstance(rows.cache, CacheWithHead | CacheWithState) and rows.streams:
            rows.cache.hand_over([*rows.tokens], own.reshape(rows.streams, -1))


class Drafter:
    """A decoder that drafts for a model: `tokens` [drafted] by its own ids, of `vocab`.

    `layers` are those of the model whose inputs are its hidden states, and `positions` the longest
    text. `reads_prompts`: it needs the hidden states of all of a prompt's tokens.
    """

    reads_prompts = True

    def __init__(
        self, decoder: DecoderWeights, tokens: np.ndarray, layers: tuple[int, ...], positions: int
    ) -> None:
        self.decoder = decoder
        self.layers = layers
        config = decoder.config
        assert config.drafts is not None
        vocabulary = config.drafts.vocab
        every = np.array_equal(tokens, np.arange(vocabulary))
        self.drafted = None if every else DraftedTokens(tokens, vocabulary)
        self._native = NativeModel(decoder, positions)
        self._native.hand_out([len(config.layers) + config.drafts.normed_own])
        self._left: dict[int, np.ndarray] = {}  # by cache: what its last row left

    def streams_of(self, batch: Sequence[StepRows]) -> np.ndarray:
        """Return room for the hidden states [T, layers, W] of a step of the model."""
        config = self.decoder.config
        assert config.drafts is not None
        count = len(self.layers)
        rows = sum(each.streams for each in batch)
        return np.empty((rows, count, config.drafts.hidden // count), np.float32)


class Follower(Drafter):
    """What drafts with rows of its own for each text, keys and values of type `dtype`.

    They are in the text's cache; see `CacheWithHead`. `block_rows` of them are there for drafts
    alone.
    """

    block_rows = 0

    def __init__(
        self,
        decoder: DecoderWeights,
        tokens: np.ndarray,
        layers: tuple[int, ...],
        positions: int,
        dtype: str,
    ) -> None:
        super().__init__(decoder, tokens, layers, positions)
        self.dtype = dtype

    def kind(
        self, limit: int, growth: Growth, arena: core.Arena, *, late: bool
    ) -> Callable[..., KVCache]:
        """Return what makes the cache of a text of at most `limit` tokens; see `CacheWithHead`."""
        return partial(CacheWithHead, head=self.cache(limit, growth, arena), late=late)

    def has_begun(self, cache: CacheWithHead) -> bool:
        """Return whether it has read enough of a text since it began.

        After a late beginning its first drafts would be worse than those that it makes later on.
        """
        return not cache.since or cache.length - cache.since >= FEW_ROWS

    def cache(self, limit: int, growth: Growth, arena: core.Arena) -> KVCache:
        """Return an empty cache for its rows of a text of at most `limit` tokens."""
        config = self.decoder.config
        keys, values = types_of(self.dtype)
        return KVCache(
            config.rows,
            growth=growth,
            limit=limit,
            key_dtype=keys,
            value_dtype=values,
            arena=arena,
            joint=config.joint,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of the keys and values of a row."""
        config = self.decoder.config
        return token_bytes(*types_of(self.dtype), config.rows, joint=config.joint > 0)

    def follow(self, caches: Sequence[KVCache]) -> None:
        """Make the rows of texts with many tokens that wait."""
        own = [each for each in caches if isinstance(each, CacheWithHead)]
        rows = [(each, each.to_follow()) for each in own if each.waiting > MAX_TENTATIVE]
        going = [(cache, found) for cache, found in rows if found is not None]
        if going:
            self._follow([cache for cache, _ in going], [found for _, found in going], outputs=0)

    def _follow(
        self, caches: Sequence[CacheWithHead], rows: Sequence[HeadRows], outputs: int
    ) -> tuple[np.ndarray, np.ndarray]:
        heads = [cache.head for cache in caches]
        hidden = np.concatenate([each.hidden for each in rows])
        found = self._step(heads, [each.tokens for each in rows], hidden, outputs)
        for cache, each in zip(caches, rows, strict=True):
            cache.follow(each.tokens)
        return found

    def _step(
        self,
        heads: Sequence[KVCache],
        tokens: Sequence[list[int]],
        hidden: np.ndarray,
        outputs: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run and commit rows; return the last ones' logits [B, D] and what they leave [B, W]."""
        options = {"outputs": outputs, "streams": outputs, "exact": True, "counted": False}
        batch = [
            StepRows(head, own, **options)  # type: ignore[arg-type]
            for head, own in zip(heads, tokens, strict=True)
        ]
        left = np.empty((outputs * len(batch), 1, self.decoder.config.width), np.float32)
        try:
            logits = self._native.step(batch, streams=left, hidden=hidden)
        except BaseException:
            for head in heads:
                head.rollback()
            raise
        for head, own in zip(heads, tokens, strict=True):
            head.commit(list(range(len(own))))
        return logits, left[:, 0]


class Head(Follower):
    """A head that drafts token by token; see `Drafter`."""

    def ready(self, cache: CacheWithHead) -> bool:
        """Return whether it has followed a text long enough, and its last hidden states wait."""
        return self.has_begun(cache) and cache.followed and 0 < cache.waiting <= cache.head.spare

    def has_room(self, cache: CacheWithHead) -> bool:
        """Return whether it can draft another token of a text."""
        return bool(cache.head.spare)

    def begin(self, caches: Sequence[CacheWithHead], last: Sequence[int]) -> np.ndarray:
        """Make the rows that texts lack; return logits [B, D] after the `last` token of each.

        Every text is followed, and at least its last token waits.
        """
        rows = [each.to_follow(token) for each, token in zip(caches, last, strict=True)]
        found = [each for each in rows if each is not None]
        assert len(found) == len(caches), "the head follows the texts"
        logits, own = self._follow(caches, found, outputs=1)
        self._left = {id(cache): state for cache, state in zip(caches, own, strict=True)}
        return logits

    def go_on(self, caches: Sequence[CacheWithHead], tokens: Sequence[int]) -> np.ndarray:
        """Run a drafted token of each text; return the logits [B, D] after it."""
        hidden = np.stack([self._left[id(cache)] for cache in caches])
        heads = [cache.head for cache in caches]
        logits, own = self._step(heads, [[token] for token in tokens], hidden, 1)
        self._left |= {id(cache): state for cache, state in zip(caches, own, strict=True)}
        return logits

    def end(self, caches: Sequence[CacheWithHead]) -> None:
        """Drop the rows of drafted tokens."""
        self._left = {}
        for cache in caches:
            cache.drop_drafts()
