"""Who guesses the next tokens, so that one traversal can check several.

A speculator is a frozen value; what it remembers of a sample lies in the sample's `drafter`, what
it needs for all of them in the proposer that it makes. A proposer sees from a sample's text which
of its drafts were accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from suffice.registry import Table
from suffice.speculate.tree import NO_DRAFTS, Tree

if TYPE_CHECKING:
    from suffice.sampling import SamplingState

__all__ = ["NO_DRAFTS", "SPECULATORS", "Drafted", "Proposer", "Speculator", "Tree"]


class Drafted(Protocol):
    """A sample for which drafts are made.

    `state` has its text and how its tokens are chosen, `sequence` is what the runner knows of it,
    and `drafter` what the proposer keeps of it, None at first.
    """

    drafter: Any
    sequence: Any

    @property
    def state(self) -> SamplingState:
        """The text, and how tokens are chosen."""
        ...


class Proposer(Protocol):
    """Makes drafts."""

    def propose(self, samples: Sequence[Drafted], most: Sequence[int]) -> list[Tree]:
        """Return drafts that continue each sample's text, at most so many tokens for each."""
        ...

    def forget(self, sample: Drafted) -> None:
        """Give back what is kept of a sample that has ended."""
        ...


class Speculator(Protocol):
    """A source of drafts."""

    @property
    def num_speculative_tokens(self) -> int:
        """The most tokens that are drafted for a step."""
        ...

    @classmethod
    def exact_limit(cls) -> Speculator | None:
        """Return the setting whose greedy tokens must equal those of plain decoding."""
        ...

    def proposer(self) -> Proposer:
        """Return what makes the drafts."""
        ...


SPECULATORS = Table(
    "speculator",
    {
        "none": "suffice.speculate.none:NoDrafts",
        "ngram": "suffice.speculate.ngram:NGram",
        "suffix": "suffice.speculate.suffix:Suffix",
    },
)
