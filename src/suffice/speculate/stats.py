"""What became of drafts, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field

from suffice.speculate.tree import Tree


@dataclass
class DraftStats:
    """Counts over the decode steps of a sample, or of several.

    Attributes:
        steps: Decode steps; each gives one token more than it accepts drafts.
        num_drafts: Steps that had drafts to check.
        num_draft_tokens: Drafted tokens, those of all branches.
        num_accepted_tokens: Drafted tokens that became part of the text.
        num_accepted_tokens_per_pos: Of these, those that came first, second, ... in their step.
    """

    steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    def add(self, tree: Tree, accepted: int) -> None:
        """Count a step with drafts, of which so many were accepted."""
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
        """Tokens that a decode step gave on average: m of the BMC paper's Eq. 9; 1 without any."""
        return 1 + self.num_accepted_tokens / self.steps if self.steps else 1.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a step with drafts gave on average, the one that follows them included."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Fraction of the drafted tokens that were accepted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_rates_per_pos(self) -> list[float]:
        """Fraction of the steps with drafts that accepted a first, a second, ... one."""
        return [count / self.num_drafts for count in self.num_accepted_tokens_per_pos]
