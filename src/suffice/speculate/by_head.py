"""Drafts by a head that reads hidden states of the model: depth by depth, or a block at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from suffice.speculate import DraftBlocks, DraftHead, DraftingSample, HeadOfModel
from suffice.speculate.tree import NO_DRAFTS, Tree, Widths

if TYPE_CHECKING:
    import numpy as np

    from suffice.speculate.proposers import Drafting


_Head = TypeVar("_Head", bound=HeadOfModel)


class _WithHead(Generic[_Head]):
    """What both ways have in common: for which samples the head drafts, and their last tokens."""

    def __init__(self, head: _Head) -> None:
        self._head = head

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return drafts that continue each sample's text, in shape i or less of it."""
        from suffice.speculate.proposers import Drafting

        caches = {at: sample.sequence.cache for at, sample in enumerate(samples)}
        going = {
            at: samples[at].state.output[-1]
            for at, cache in caches.items()
            if shapes[at] and self._head.ready(cache)
        }
        if not going:
            return [NO_DRAFTS] * len(samples)
        drafting = Drafting.of(samples, shapes, self._head.drafted)
        try:
            self._draft(drafting, caches, going, shapes)
        finally:
            self._head.end([*caches.values()])
        return drafting.trees()

    def _draft(
        self,
        drafting: Drafting,
        caches: dict[int, Any],
        last: dict[int, int],
        shapes: Sequence[Widths],
    ) -> None:
        """Draft for the samples that `last` has the last tokens of."""
        raise NotImplementedError

    def forget(self, sample: DraftingSample) -> None:
        """Free what its text drafts with; the head's rows are in the sample's cache."""
        sample.drafter = None


class ByHead(_WithHead[DraftHead]):
    """Drafts ahead with a head, all samples together."""

    def _draft(
        self,
        drafting: Drafting,
        caches: dict[int, Any],
        last: dict[int, int],
        shapes: Sequence[Widths],
    ) -> None:
        going = [*last]
        logits = self._head.begin([caches[at] for at in going], [*last.values()])
        while waiting := _drafted(drafting, going, logits):
            going = [at for at in waiting if self._head.has_room(caches[at])]
            if not going:
                break
            tokens = [waiting[at] for at in going]
            logits = self._head.go_on([caches[at] for at in going], tokens)


class ByBlock(_WithHead[DraftBlocks]):
    """Drafts all depths at once with a head, all samples together."""

    def _draft(
        self,
        drafting: Drafting,
        caches: dict[int, Any],
        last: dict[int, int],
        shapes: Sequence[Widths],
    ) -> None:
        depths = [len(shapes[at]) for at in last]
        blocks = self._head.block([caches[at] for at in last], [*last.values()], depths)
        for at, logits in zip(last, blocks, strict=True):
            token = last[at]
            for row in logits:
                found = drafting.draft(at, *self._head.after(token, row))
                if found is None:
                    break
                token = found


def _drafted(drafting: Drafting, going: list[int], logits: np.ndarray) -> dict[int, int]:
    """Draft one more depth; return the tokens whose logits the next one needs."""
    found = {at: drafting.draft(at, row) for at, row in zip(going, logits, strict=True)}
    return {at: token for at, token in found.items() if token is not None}
