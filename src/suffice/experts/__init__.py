"""Which of the experts that a row is sent to are computed.

A model's own rule sends a row to some experts, with a weight for each. A technique may leave out
some of these, in prompts and in decode steps alike: then a row's keys and values do not depend on
how it was run.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from suffice.registry import Table

__all__ = ["EXPERTS", "ChoiceOfExperts"]


class ChoiceOfExperts(Protocol):
    """A choice among a row's experts."""

    @property
    def left_out(self) -> float:
        """The largest share of a row's weights whose experts are left out."""
        ...

    def kept(self, weights: np.ndarray) -> np.ndarray:
        """Return which experts of a row with weights float32 [E], 0 for others, are computed."""
        ...


EXPERTS = Table(
    "choice of experts",
    {"all": "suffice.experts.all:All", "mass": "suffice.experts.mass:Mass"},
    frozenset({"all", "mass"}),
)
