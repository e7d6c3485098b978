"""How scores become weights: by e^x, or by codes of few bits that stand for it.

With x_s = score of key s minus the largest of the row (so far, where blocks are weighed as they
come), a key weighs e^(x_s). A coded softmax replaces that by a table, see `levels`.

Native   csrc/kernels/attention.inl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from suffice.attention.calibration import Calibration
    from suffice.attention.levels import Levels


class Softmax(Protocol):
    """A way to turn scores into weights."""

    @property
    def prefill(self) -> bool:
        """Whether prompts run with it too, by the native step."""
        ...

    @property
    def coded(self) -> bool:
        """Whether it has levels, which a calibration of the model gives."""
        ...

    @classmethod
    def exact_limit(cls) -> Softmax | None:
        """Return the setting that must equal `exact`, None if the technique has a bound instead."""
        ...

    def levels(self, calibration: Calibration) -> list[list[Levels]]:
        """Return the levels of each layer and query head, [L][H]; only if it is coded."""
        ...


@dataclass(frozen=True)
class ExactSoftmax:
    """Weights are e^x."""

    @property
    def prefill(self) -> bool:
        """Return that prompts run as they do anyway."""
        return False

    @property
    def coded(self) -> bool:
        """Return that there are no levels."""
        return False

    @classmethod
    def exact_limit(cls) -> ExactSoftmax:
        """Return the only setting there is."""
        return cls()

    def levels(self, calibration: Calibration) -> list[list[Levels]]:
        """Return none."""
        return []
