"""Who guesses the next tokens, so that one traversal can check several."""

from __future__ import annotations

from typing import Protocol

from suffice.registry import Table

__all__ = ["SPECULATORS", "Speculator"]


class Speculator(Protocol):
    """A source of drafts."""

    @classmethod
    def exact_limit(cls) -> Speculator | None:
        """Return the setting whose greedy tokens must equal those of plain decoding."""
        ...


SPECULATORS = Table("speculator", {"none": "suffice.speculate.none:NoDrafts"})
