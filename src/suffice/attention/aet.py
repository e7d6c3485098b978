"""Early termination: stop once the keys that were read hold enough of the estimated mass.

    Avg = (Sum_known - Max) / (n - 1)            weight of an unread key      (Algorithm 1, line 12)
    stop if (Sum_known + Avg (L - n)) keys <= Sum_known                        (line 14)
    V is read for keys of weight >= values Max                                 (line 10)

n of L keys have been read. Sinks, global and local tokens are always read; Max is the largest
weight among them. The other blocks follow newest first, or heaviest first with `order=sketch`.
Global tokens are the tokens with the most attention mass since they were local: a token that stops
being local replaces the lightest global one.

Source   Byeon et al., "Scrooge: Accelerating Attention Inference in LLMs via Early Termination
         Mechanism", Algorithm 1.
Differs  Tokens enter, are checked and are replaced in blocks of 16 unless `block=1`, the paper's
         granularity. Heads that share keys stop
         together, once all of them may stop, and read a value if one of them needs it. Attention
         mass is normalised and summed over these heads. Scores are divided by sqrt(d), which the
         listing omits. `order=sketch` is ours.
Exact    keys=all,values=0.
Cost     reads K of the blocks up to the stop, and V of the keys that pass the filter. No guarantee:
         an unread key may be heavy. `block=1` shows what the paper's algorithm reads and loses,
         and saves no time: 16 keys lie together in memory, and the kernel takes one by one.
Native   csrc/attention/techniques/aet.inl, csrc/attention/aet_state.cpp
Example  aet:keys=0.9,values=0.001
Options
    keys        share of the estimated attention mass that must be read before a head stops; all:
                never stops; a number between 1 and 2: the same, but checks as if it could
    values      values are not read for keys lighter than this share of the heaviest one of the keys
                that are always read; 0: all are read
    block       tokens that are read and checked together: 16, or 1 as in the paper
    sinks       first tokens, always read
    globals     tokens with the most attention mass so far, always read
    locals      newest tokens, always read, the token itself included
    order       newest: the other blocks newest first; sketch: heaviest first by a 4-bit sketch
    calibrated  take keys by layer and head from `suffice calibrate --budget`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from suffice.attention.rule import AttentionRule
from suffice.attention.technique import BlockByBlock
from suffice.cache import BLOCK
from suffice.errors import InputError
from suffice.registry import spelling

if TYPE_CHECKING:
    from suffice.attention.traversal import Seen


NEVER_STOP = 2.0  # more than any share that is known


@dataclass
class Known:
    """One head's blocks that are always read, with the mass each has had."""

    next: int = 0  # the first block not seen yet
    globals: dict[int, float] = field(default_factory=dict)
    locals: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AET(BlockByBlock):
    """Early termination with thresholds `keys` and `values`: the paper's k and v.

    `order`: see `suffice.attention.technique.BlockByBlock`. `calibrated`: with `keys` for each
    layer and key/value head, see `suffice.attention.by_head`.
    """

    stateless: ClassVar[bool] = False
    ladders: ClassVar = {"keys": (0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.7, 0.5)}

    keys: float = field(default=0.9, metadata=spelling(words={"all": NEVER_STOP}))
    values: float = 0.001
    block: int = 16
    sinks: int = 1
    globals: int = 64
    locals: int = 8
    order: str = "newest"
    calibrated: bool = False

    def __post_init__(self) -> None:
        self.check_order("aet", self.block)
        if not 0 < self.keys <= NEVER_STOP:
            raise InputError(
                f"aet: keys={self.keys}: must be above 0 and at most 1, or all (2), which never "
                "stops"
            )
        if not 0 <= self.values <= 1:
            raise InputError(f"aet: values={self.values}: must be in [0, 1]")
        if self.block < 1:
            raise InputError(f"aet: block={self.block}: must be at least 1 token")
        for name in ("sinks", "globals", "locals"):
            if getattr(self, name) < 0:
                raise InputError(f"aet: {name}={getattr(self, name)}: must be at least 0 tokens")
        if self.locals == 0:
            raise InputError("aet: locals=0: must be at least 1, the token itself")

    @classmethod
    def exact_limit(cls) -> AET:
        """Return the setting that reads all rows."""
        return cls(keys=NEVER_STOP, values=0)

    def new_state(self) -> Known:
        """Return the state of a head before its first token."""
        return Known()

    def always(self, state: Known, length: int) -> list[int]:
        """Return sinks, global and local blocks for a token that sees `length` keys.

        Blocks that stop being local replace the lightest global ones (lines 18 to 20).
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
        """Return None: checks do not depend on each other."""

    def enough(self, seen: Seen, watch: None) -> np.ndarray:
        """Return which heads may stop, bool [R] (lines 11 to 14)."""
        known = seen.total
        with np.errstate(divide="ignore", invalid="ignore"):  # one key has no average: go on
            average = (known - seen.greatest) / (seen.known - 1)
            unknown = average * (seen.length - seen.known)
        enough: np.ndarray = (known + unknown) * self.keys <= known
        return enough

    def learn(self, state: Known, masses: dict[int, float]) -> None:
        """Add a token's masses to those of the global and local blocks."""
        for blocks in (state.globals, state.locals):
            for block in blocks:
                blocks[block] += masses[block]

    def rule(self) -> AttentionRule:
        """Return what the native kernel does.

        Raises:
            InputError: A block size that only the reference has.
        """
        if self.block not in (1, BLOCK):
            raise InputError(
                f"aet: block={self.block}: the native kernel has blocks of {BLOCK} tokens, or of 1"
            )
        parameters = {
            "key_share": self.keys,
            "sinks": -(-self.sinks // self.block),
            "globals": -(-self.globals // self.block),
            "locals": self.locals,
            "by_rows": self.block == 1,
            "by_sketch": self.sketched,
        }
        exact = self.keys >= NEVER_STOP and self.values == 0
        return AttentionRule("aet", parameters, self.values, exact)
