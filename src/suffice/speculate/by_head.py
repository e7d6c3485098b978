"""Drafts by a head that reads hidden states of the model, depth by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from suffice.speculate import DraftHead, DraftingSample
from suffice.speculate.tree import NO_DRAFTS, Tree, Widths

if TYPE_CHECKING:
    import numpy as np

    from suffice.speculate.proposers import Drafting


class ByHead:
    """Drafts ahead with a head, all samples together."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return drafts that continue each sample's text, in shape i or less of it."""
        from suffice.speculate.proposers import Drafting

        caches = {at: sample.sequence.cache for at, sample in enumerate(samples)}
        going = [at for at, cache in caches.items() if shapes[at] and self._head.ready(cache)]
        if not going:
            return [NO_DRAFTS] * len(samples)
        drafting = Drafting.of(samples, shapes, self._head.drafted)
        try:
            last = [samples[at].state.output[-1] for at in going]
            logits = self._head.begin([caches[at] for at in going], last)
            while waiting := _drafted(drafting, going, logits):
                going = [at for at in waiting if self._head.has_room(caches[at])]
                if not going:
                    break
                tokens = [waiting[at] for at in going]
                logits = self._head.go_on([caches[at] for at in going], tokens)
        finally:
            self._head.end([*caches.values()])
        return drafting.trees()

    def forget(self, sample: DraftingSample) -> None:
        """Free what its text drafts with; the head's rows are in the sample's cache."""
        sample.drafter = None


def _drafted(drafting: Drafting, going: list[int], logits: np.ndarray) -> dict[int, int]:
    """Draft one more depth; return the tokens whose logits the next one needs."""
    found = {at: drafting.draft(at, row) for at, row in zip(going, logits, strict=True)}
    return {at: token for at, token in found.items() if token is not None}
