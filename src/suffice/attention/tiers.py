"""Three tiers of keys and values: each row is read as exactly as it matters.

Keys and values lie in two planes of 4 bits (`planes`). The base planes of all keys give a score x'
for each. With p' = e^x' / sum e^x', blocks of 16 rows are chosen, heaviest first, until for every
head of the group

    sum of p' over the other blocks <= eps

and a row is read as follows:

    p' < skip in every head    skipped         neither weight nor value
    light: in no chosen block  base plane      weight e^x', value by its base plane
    heavy: in a chosen block   both planes     weight e^x, value exact

The output is the mean of the values by these weights, over the rows that are not skipped. The
row of the largest p' of a head is never skipped.

Source   ours; 4-bit scores for choosing keys as in Lin et al., "Twilight".
Exact    eps = 0 and skip = 0.
Cost     reads the base planes of all keys, both planes of heavy rows and the base planes of light
         values: (D / 2 + 4) bytes for a row of a base plane.
Native   csrc/attention/tiers_traversal.cpp, csrc/kernels/tiers.inl, csrc/kernels/kv_planes.inl
Example  tiers:eps=0.5,skip=0.0002
Options
    eps   largest share of the softmax with estimated scores, in every head; 0: all are exact
    skip  rows of a smaller share of the softmax, in every head, are not read; 0: none are left out
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from suffice.attention.rule import AttentionRule
from suffice.attention.technique import Technique
from suffice.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from suffice.attention.tiers_reference import Tiered

LEAST = 1e-6  # of `eps` above 0, that float32 sums of weights distinguish from 0


@dataclass(frozen=True)
class Tiers(Technique):
    """Estimates at most the share `eps` of a softmax, and skips rows below the share `skip`."""

    needs_exact_softmax: ClassVar[bool] = True

    eps: float = 0.5
    skip: float = 0.0002

    def __post_init__(self) -> None:
        if not (self.eps == 0 or LEAST <= self.eps <= 1):
            raise InputError(f"tiers: eps={self.eps}: must be 0 or in [{LEAST}, 1]")
        if not 0 <= self.skip <= 1:
            raise InputError(f"tiers: skip={self.skip}: must be in [0, 1]")

    @property
    def approximates(self) -> bool:
        """Return whether anything may be estimated or skipped."""
        return self.eps > 0 or self.skip > 0

    @property
    def storage(self) -> str | None:
        """Return the type that keys and values must have, None for any."""
        return "planes" if self.approximates else None

    @property
    def needs_all_tokens(self) -> bool:
        """Return whether it selects from all tokens itself."""
        return self.approximates

    @classmethod
    def exact_limit(cls) -> Tiers:
        """Return the setting that reads all rows by both planes."""
        return cls(eps=0, skip=0)

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        scale: float,
        visible: np.ndarray | None = None,
        states: list[Any] | None = None,
    ) -> Tiered:
        """Attend to keys and values as read from planes; see `Attention.reference`."""
        from suffice.attention.tiers_reference import attend

        return attend(q, k, v, scale=scale, eps=self.eps, skip=self.skip, visible=visible)

    def rule(self) -> AttentionRule:
        """Return what the native kernel does."""
        parameters = {"estimated": self.eps, "lightest": self.skip}
        return AttentionRule("tiers", parameters, exact=not self.approximates)
