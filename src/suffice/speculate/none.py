"""Plain decoding: speculation with zero drafts.

Exact    always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from suffice.speculate import DraftingSample, DraftSource, ReadsNoKeys
from suffice.speculate.tree import NO_DRAFTS, Tree, Widths


@dataclass(frozen=True)
class NoDrafts(ReadsNoKeys):
    """One new token per step."""

    num_speculative_tokens: ClassVar[int] = 0
    width: ClassVar[int] = 1
    adaptive: ClassVar[bool] = False
    from_text: ClassVar[bool] = True
    text: ClassVar[bool] = False

    @classmethod
    def exact_limit(cls) -> NoDrafts:
        """Return the only setting."""
        return cls()

    def proposer(self, models: DraftSource) -> NoDrafts:
        """Return itself; there is no state."""
        return self

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return no drafts."""
        return [NO_DRAFTS for _ in samples]

    def forget(self, sample: DraftingSample) -> None:
        """Do nothing."""
