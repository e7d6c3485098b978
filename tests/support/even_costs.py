"""Costs that nothing changes."""

from __future__ import annotations

from suffice.speculate.costs import StepCosts


class EvenCosts(StepCosts):
    """A step takes 1, and `row` for each draft; a draft of a model takes `each`."""

    def __init__(self, row: float, each: float) -> None:
        super().__init__()
        self._row, self._each = row, each

    def step(self, samples: int, drafts: int) -> float:
        return 1 + self._row * drafts

    @property
    def draft(self) -> float:
        return self._each
