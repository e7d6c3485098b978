"""Sparse attention with a certified bound on the softmax mass that it skips.

A sketch of the keys, 4 bits per element, gives every key's score x within a known distance:

    k = k' + r,  x' = q . k'     |x - x'| <= |q| |r| + the error of rounding q to 8 bits

so a block of keys has about the mass m = sum e^x', and at most M = m e^(|q| max |r| + ...). The
newest keys, which have no sketch yet, are read. Then blocks are read, largest m first, until for
every head of the group

    R / (A + R) <= eps      A: mass of the keys that were read, R: sum of M over the other blocks

The blocks are chosen before any is read, with m as their mass. If that was too few, more are read
until the bound holds. So the output lacks at most `eps` of the exact softmax, always. With
`bounded=false` M is m itself: fewer blocks for the same `eps`, without the guarantee.

With `values` above 0, values of keys below that share of the largest weight known so far are not
read, as long as these keys hold at most eps / 2 of the mass of their 256; R / (A + R) is then held
below eps / 2, and the sum of both stays below `eps`.

Source   ours; 4-bit estimates for choosing keys as in Lin et al., "Twilight".
Exact    eps = 0.
Bound    `eps`: the total variation distance to the exact softmax, for each head.
Cost     reads the sketch (D / 2 bytes and scales per key) and K and V of the chosen blocks.
Native   csrc/attention/certified_search.cpp, csrc/cache/sketch.cpp, csrc/kernels/sketch.inl,
         csrc/kernels/attend_selected.inl
Example  certified:eps=0.05
Options
    eps         softmax mass that may stay unread, in every head; 0 reads everything
    values      values of keys lighter than this share of the heaviest key are not read, within eps
    bounded     false: stop by the estimated mass, which reads fewer blocks and guarantees nothing
    calibrated  take eps by layer and head from `suffice calibrate --budget`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from suffice.attention.rule import AttentionRule
from suffice.attention.technique import Technique
from suffice.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from suffice.attention.traversal import Attended

LEAST, MOST = 1e-6, 0.999999  # range of `eps` above 0 that float32 distinguishes from 0 and 1


@dataclass(frozen=True)
class Certified(Technique):
    """Leaves at most the share `eps` of the softmax unread, including values skipped by `values`.

    `calibrated`: with an `eps` for each layer and key/value head, see `suffice.attention.by_head`.
    """

    needs_exact_softmax: ClassVar[bool] = True
    ladders: ClassVar = {"eps": (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75)}

    eps: float = 0.05
    values: float = 0.0
    bounded: bool = True
    calibrated: bool = False

    def __post_init__(self) -> None:
        if not (self.eps == 0 or LEAST <= self.eps <= MOST):
            raise InputError(f"certified: eps={self.eps}: must be 0 or in [{LEAST}, {MOST}]")
        if not 0 <= self.values <= 1:
            raise InputError(f"certified: values={self.values}: must be in [0, 1]")

    @property
    def sketched(self) -> bool:
        """Return whether the cache must keep a sketch of the keys."""
        return self.eps > 0

    @classmethod
    def exact_limit(cls) -> Certified:
        """Return the setting that reads all rows."""
        return cls(eps=0)

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        scale: float,
        visible: np.ndarray | None = None,
        states: list[Any] | None = None,
    ) -> Attended:
        """Attend until the unread mass is bounded; see `Attention.reference`."""
        from suffice.attention.certified_reference import Limits, attend

        limits = Limits(self.eps, self.values, self.bounded)
        return attend(q, k, v, scale=scale, limits=limits, visible=visible)

    def rule(self) -> AttentionRule:
        """Return what the native kernel does."""
        parameters = {"missing": self.eps, "bounded": self.bounded}
        return AttentionRule("certified", parameters, self.values, exact=self.eps == 0)
