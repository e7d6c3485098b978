"""Counts of drafts and accepted drafts, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field

from suffice.speculate.tree import Tree


@dataclass
class DraftStats:
    """Counts over the decode steps of a sample, or of several.

    Attributes:
        steps: Decode steps; each gives one token more than it accepts drafts.
        num_drafts: Steps that had drafts to check.
        num_draft_tokens: Checked drafts, including all branches.
        num_accepted_tokens: Accepted drafts.
        num_accepted_tokens_per_pos: Accepted drafts by their position in the step: first, second...
    """

    steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    def add(self, tree: Tree, accepted: int) -> None:
        """Count a step that accepted `accepted` of the drafts in `tree`."""
        self.steps += 1
        if not len(tree):
            return
        self.num_drafts += 1
        self.num_draft_tokens += len(tree)
        self.num_accepted_tokens += accepted
        self._lengthen(max(tree.depths))
        for position in range(accepted):
            self.num_accepted_tokens_per_pos[position] += 1

    def include(self, other: DraftStats) -> None:
        """Add the counts of another."""
        self.steps += other.steps
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        self._lengthen(len(other.num_accepted_tokens_per_pos))
        for position, count in enumerate(other.num_accepted_tokens_per_pos):
            self.num_accepted_tokens_per_pos[position] += count

    def _lengthen(self, positions: int) -> None:
        missing = positions - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos += [0] * missing

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens per decode step, m of the BMC paper's Eq. 9; 1 without any steps."""
        return 1 + self.num_accepted_tokens / self.steps if self.steps else 1.0

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens per step with drafts, including the one after the drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted drafts over checked drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_rates_per_pos(self) -> list[float]:
        """Fractions of the steps with drafts that accepted a first, a second, ... draft."""
        return [count / self.num_drafts for count in self.num_accepted_tokens_per_pos]
