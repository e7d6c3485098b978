"""Attention to what must be read so that what is missing is known to be little.

A sketch of the keys, 4 bits per element, gives every key's score x within a known distance:

    k = k' + r,  x' = q . k'     |x - x'| <= |q| |r| + what rounding q to 8 bits leaves

so that a block of keys has about the mass m = sum e^x', and at most M = m e^(|q| max |r| + ...).
The newest keys, which no complete chunk of 64 holds yet, are read, and then blocks, those of the
largest m first, until for every head of the group, with A the mass of what was read and R the sum
of M over the rest,

    R / (A + R) <= eps

How far to go is decided before the blocks are read, with m for their mass. If that promised too
much, more are read until it holds. With `v` the values of keys whose weight is below `v` of the
largest, as it is known then, are not read, as long as these keys have at most eps / 2 of the mass
of their 256, and R / (A + R) is held below eps / 2.

The share of the exact softmax that the output lacks is at most `eps`, always. With `bounded` false
M is the estimate m itself: fewer blocks for the same `eps`, without the guarantee.

Source   this project; INT4 estimates for a choice of keys as in Lin et al., "Twilight".
Exact    eps = 0.
Bound    `eps`: the total variation distance to the exact softmax, for each head.
Cost     reads the sketch (D / 2 bytes and scales per key) and K and V of visited blocks.
Native   csrc/attention/certified_search.cpp, csrc/cache/sketch.cpp, csrc/kernels/sketch.inl,
         csrc/kernels/attend_selected.inl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from suffice.attention.technique import Technique
from suffice.errors import InputError

if TYPE_CHECKING:
    import torch

    from suffice.attention.traversal import Attended
    from suffice.native import core

VISIT = 16  # blocks that are visited together: they share the allowance for values
SUM_ERROR = 1e-5  # of float32, as in the native code
LEAST, MOST = 1e-6, 0.999999  # of `eps` above 0: what float32 tells from 0 and 1


@dataclass(frozen=True)
class Certified(Technique):
    """At most the share `eps` of the softmax is missing; `v` of `aet` is charged to it.

    `calibrated`: with an `eps` for each layer and key/value head, see `suffice.attention.by_head`.
    """

    threshold: ClassVar = "eps"
    ladder: ClassVar = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75)

    eps: float = 0.05
    v: float = 0.0
    bounded: bool = True
    calibrated: bool = False

    def __post_init__(self) -> None:
        if not (self.eps == 0 or LEAST <= self.eps <= MOST):
            raise InputError(f"certified: eps={self.eps}: must be 0 or in [{LEAST}, {MOST}]")
        if not 0 <= self.v <= 1:
            raise InputError(f"certified: v={self.v}: must be in [0, 1]")

    @property
    def sketched(self) -> bool:
        """Return whether the cache must keep a sketch of the keys."""
        return self.eps > 0

    @classmethod
    def exact_limit(cls) -> Certified:
        """Return the setting that reads everything."""
        return cls(eps=0)

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float,
        visible: torch.Tensor | None = None,
        states: list[Any] | None = None,
    ) -> Attended:
        """Attend until the rest is bounded; see `Attention.reference`."""
        from suffice.attention.certified_reference import attend

        return attend(self, q, k, v, scale=scale, visible=visible)

    def rule(self) -> core.AttentionRule:
        """Return what the native kernel does."""
        from suffice.native import core

        return core.AttentionRule.certified(
            missing=self.eps, bounded=self.bounded, value_share=self.v
        )
