"""Drafts by a head that reads hidden states of the model, depth by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from suffice.speculate import DraftHead, DraftingSample
from suffice.speculate.tree import FEW_ROWS, NO_DRAFTS, Tree, Widths

if TYPE_CHECKING:
    import numpy as np

    from suffice.cache.with_head import CacheWithHead
    from suffice.speculate.proposers import Drafting


class ByHead:
    """Drafts ahead with a head, all samples together."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return drafts that continue each sample's text, in shape i or less of it."""
        from suffice.speculate.proposers import Drafting

        caches = {at: sample.sequence.cache for at, sample in enumerate(samples)}
        going = [at for at, cache in caches.items() if shapes[at] and _can_begin(cache)]
        if not going:
            return [NO_DRAFTS] * len(samples)
        drafting = Drafting([sample.state for sample in samples], shapes)
        try:
            last = [samples[at].state.output[-1] for at in going]
            logits = self._head.begin([caches[at] for at in going], last)
            while waiting := _drafted(drafting, going, logits):
                going = [at for at in waiting if caches[at].head.spare]
                tokens = [waiting[at] for at in going]
                logits = self._head.go_on([caches[at] for at in going], tokens) if going else []
        finally:
            self._head.end([*caches.values()])
        return drafting.trees()

    def forget(self, sample: DraftingSample) -> None:
        """Do nothing: the head's rows are in the sample's cache."""


def _drafted(drafting: Drafting, going: list[int], logits: list[np.ndarray]) -> dict[int, int]:
    """Draft one more depth; return the tokens whose logits the next one needs."""
    found = {at: drafting.draft(at, row) for at, row in zip(going, logits, strict=True)}
    return {at: token for at, token in found.items() if token is not None}


def _can_begin(cache: CacheWithHead) -> bool:
    """Whether the head has followed a text long enough, and hidden states of its last token wait.

    After a late beginning its first drafts would be worse than those that it makes later on.
    """
    enough = not cache.since or cache.length - cache.since >= FEW_ROWS
    return enough and cache.followed and 0 < cache.waiting <= cache.head.spare
