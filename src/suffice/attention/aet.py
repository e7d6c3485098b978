"""Attention early termination: stop once what is known makes up enough of the estimated whole.

    Avg = (Sum_known - Max) / (n - 1)            weight of an unknown key     (Algorithm 1, line 12)
    stop if (Sum_known + Avg (L - n)) k <= Sum_known                           (line 14)
    V is read for keys of weight >= v Max                                      (line 10)

Max is the largest weight among the keys that are always read: sinks, `globals` and `locals`. The
others follow, newest first; or, with `order=sketch`, which is ours, heaviest first as a sketch of
the keys has it. The global tokens are those that weighed most since they were local:
one that leaves the local ones replaces the lightest.

Source   Byeon et al., "Scrooge: Accelerating Attention Inference in LLMs via Early Termination
         Mechanism", Algorithm 1. The listing omits 1/sqrt(d), which applies; equality stops. Masses
         accumulate normalised, summed over the heads of a group. With `block` = 1 it is the paper;
         larger blocks enter, are looked at and replace each other as a whole.
Exact    k = 2 (never stops), v = 0.
Cost     reads K of the visited blocks and V of the chosen rows. No guarantee: a heavy key may be
         among those that are not read.
Native   csrc/kernels/traverse.inl, csrc/attention/aet_state.cpp
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from suffice.attention.technique import BlockByBlock
from suffice.errors import InputError

if TYPE_CHECKING:
    import torch

    from suffice.attention.traversal import Seen
    from suffice.native import core


@dataclass
class Known:
    """One head's blocks that are always read, with the mass each has had."""

    next: int = 0  # the first block that has not come yet
    globals: dict[int, float] = field(default_factory=dict)
    locals: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AET(BlockByBlock):
    """Early termination with thresholds `k` for keys and `v` for values.

    `order`: see `suffice.attention.technique.BlockByBlock`. `calibrated`: with a `k` for each
    layer and key/value head, see `suffice.attention.by_head`.
    """

    threshold: ClassVar = "k"
    ladder: ClassVar = (0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.7, 0.5)

    k: float = 0.9
    v: float = 0.001
    block: int = 16
    sinks: int = 1
    globals: int = 64
    locals: int = 8
    order: str = "newest"
    calibrated: bool = False

    def __post_init__(self) -> None:
        self.check_order("aet", self.block)
        if not 0 < self.k <= 2:
            raise InputError(f"aet: k={self.k}: must be above 0 and at most 2, which never stops")
        if not 0 <= self.v <= 1:
            raise InputError(f"aet: v={self.v}: must be in [0, 1]")
        if self.block < 1:
            raise InputError(f"aet: block={self.block}: must be at least 1 token")
        for name in ("sinks", "globals", "locals"):
            if getattr(self, name) < 0:
                raise InputError(f"aet: {name}={getattr(self, name)}: must be at least 0 tokens")
        if self.locals == 0:
            raise InputError("aet: locals=0: must be at least 1, the token itself")

    @classmethod
    def exact_limit(cls) -> AET:
        """Return the setting that reads everything."""
        return cls(k=2, v=0)

    def new_state(self) -> Known:
        """Return the state of a head that has seen nothing."""
        return Known()

    def always(self, state: Known, length: int) -> list[int]:
        """Return sinks, global and local blocks for a token that sees `length` keys.

        Blocks that are not local any more replace the lightest of the global ones (lines 18 to 20).
        """
        sinks, most = -(-self.sinks // self.block), -(-self.globals // self.block)
        while state.next * self.block < length:
            if state.next >= sinks:
                state.locals[state.next] = 0.0
            state.next += 1
        while state.locals and (min(state.locals) + 1) * self.block <= length - self.locals:
            block = min(state.locals)
            mass = state.locals.pop(block)
            if most and len(state.globals) == most:
                lightest = min(state.globals, key=lambda each: (state.globals[each], each))
                del state.globals[lightest]
            if most:
                state.globals[block] = mass
        return [*range(min(sinks, state.next)), *state.globals, *state.locals]

    def watch(self) -> None:
        """Return nothing: a look needs no other look."""

    def enough(self, seen: Seen, watch: None) -> torch.Tensor:
        """Return which heads know enough, bool [R] (lines 11 to 14)."""
        known = seen.total
        average = (known - seen.greatest) / (seen.known - 1)
        unknown = average * (seen.length - seen.known)
        return (known + unknown) * self.k <= known

    def learn(self, state: Known, masses: dict[int, float]) -> None:
        """Add a token's masses to those of the global and local blocks."""
        for blocks in (state.globals, state.locals):
            for block in blocks:
                blocks[block] += masses[block]

    def rule(self) -> core.AttentionRule:
        """Return what the native kernel does.

        Raises:
            InputError: A block size that only the reference has.
        """
        from suffice.native import PANEL, core

        if self.block != PANEL:
            raise InputError(f"aet: block={self.block}: the native kernel has blocks of {PANEL}")
        return core.AttentionRule.aet(
            key_share=self.k,
            value_share=self.v,
            sinks=-(-self.sinks // PANEL),
            globals=-(-self.globals // PANEL),
            locals=self.locals,
            by_sketch=self.sketched,
        )
