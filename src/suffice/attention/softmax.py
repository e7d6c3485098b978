"""How scores become weights: by e^x, or by a table for codes of few bits.

Let x_s be the score of key s minus the largest score of the row (the largest so far, if blocks are
weighed one by one). Its weight is e^(x_s). A coded softmax replaces it by a table, see `levels`.

Native   csrc/kernels/attention.inl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from suffice.attention.calibration import Calibration
    from suffice.attention.levels import Levels


class Softmax(Protocol):
    """A function from scores to weights."""

    @property
    def prefill(self) -> bool:
        """Whether prompts use it too, in the native step."""
        ...

    @property
    def coded(self) -> bool:
        """Whether it has levels, which come from a calibration of the model."""
        ...

    @classmethod
    def exact_limit(cls) -> Softmax | None:
        """Return a setting that must equal `exact`; None if the technique has a bound instead."""
        ...

    def levels(self, calibration: Calibration) -> list[list[Levels]]:
        """Return the levels of each layer and query head, [L][H]; only if it is coded."""
        ...


@dataclass(frozen=True)
class ExactSoftmax:
    """Weights are e^x."""

    @property
    def prefill(self) -> bool:
        """Return False: prompts run as usual."""
        return False

    @property
    def coded(self) -> bool:
        """Return False: there are no levels."""
        return False

    @classmethod
    def exact_limit(cls) -> ExactSoftmax:
        """Return the only setting."""
        return cls()

    def levels(self, calibration: Calibration) -> list[list[Levels]]:
        """Return an empty list."""
        return []
