"""Attention that stops once what is missing is known to be little.

A sketch of the keys, 4 bits per element, gives every key's score x within a known distance:

    k = k' + r,  x' = q . k'     |x - x'| <= |q| |r| + what rounding q to 8 bits leaves

so that a block of keys has at most the mass M = sum e^(x' + |q| max |r| + ...). Blocks are visited,
which reads their keys and values, in the descending order of their estimated mass, until for every
head of the group, with A the mass of what was visited and R the sum of M over the rest,

    (R + D) / (A + R) <= eps

D is the mass of visited keys whose value was not read: those below `v` of the largest weight, as
long as they come to no more than eps / 2. The share of the exact softmax that the output lacks is
then at most `eps`, always. With `bounded` false M is the estimate sum e^x' itself: fewer blocks for
the same `eps`, without the guarantee.

The newest keys, which no complete chunk of 64 holds yet, are always read.

Source   this project; INT4 estimates for a choice of keys as in Lin et al., "Twilight".
Exact    eps = 0.
Bound    `eps`: the total variation distance to the exact softmax, for each head.
Cost     reads the sketch (D / 2 bytes and scales per key) and K and V of visited blocks.
Native   csrc/sketch.cpp, csrc/kernels/sketch.inl, csrc/kernels/traverse.inl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suffice.attention.technique import Technique
from suffice.errors import InputError

if TYPE_CHECKING:
    import torch

    from suffice.attention.traversal import Attended
    from suffice.native import core

CHUNK = 64  # keys of a sketch that share a scale per channel
BLOCK = 16
LAG = 32  # rows that a step may have: a key enters the sketch no earlier than so many later
SLACK, ROUNDING = 1 + 1e-5, 1e-4  # for float32, as in the native code


@dataclass(frozen=True)
class Certified(Technique):
    """At most the share `eps` of the softmax is missing; `v` of `aet` is charged to it."""

    eps: float = 0.05
    v: float = 0.0
    bounded: bool = True
    look: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.eps < 1:
            raise InputError(f"certified: eps={self.eps}: must be in [0, 1)")
        if not 0 <= self.v <= 1:
            raise InputError(f"certified: v={self.v}: must be in [0, 1]")
        if not 1 <= self.look <= 4:
            raise InputError(
                f"certified: look={self.look}: must be 1 to 4 blocks between two looks"
            )

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

    def rule(self) -> core.Rule:
        """Return what the native kernel does."""
        from suffice.native import core

        return core.Rule(
            stop=3,
            look_blocks=self.look,
            value_share=self.v,
            missing=self.eps,
            bounded=self.bounded,
        )
