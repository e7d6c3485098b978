"""Attention early termination as in the accelerator: the reference, line by line.

Source   Byeon et al., "Scrooge: Accelerating Attention Inference in LLMs via Early Termination
         Mechanism", Algorithm 1. Waves are from section V-B: the condition is checked once for the
         tokens that are processed together, so up to a wave minus one too many are read.
Native   csrc/hw/aet.cpp, on logits. Here weights are numbers of any type, fractions included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from suffice_hw import _simulator
from suffice_hw.settings import Settings, limited

GROUP_STOPS = ("all", "any", "masked")
MASSES = ("scores", "weights")


@dataclass(frozen=True)
class Rule(Settings):
    """Thresholds and sets of Algorithm 1, and the choices that it leaves open.

    `filter_important`: the value test applies to important tokens too. `running_max`: Max includes
    tokens read later. `masses`: global tokens are ranked by softmax `scores` or by unnormalized
    `weights`. `group_stop`, for heads that share keys: stop when the condition holds for `all`
    heads, or for `any` head; with `masked`, for all, but each head is ignored once it holds.
    """

    key_share: float = limited(0.01, 2, default=0.9)  # thr_k; above 1 never stops
    value_share: float = limited(0, 1, default=0.001)  # thr_v
    sinks: int = limited(0, 1024, default=1)
    globals: int = limited(0, 4096, default=64)
    locals: int = limited(1, 4096, default=8)
    wave: int = limited(1, 64, default=1)
    filter_important: bool = False
    running_max: bool = False
    masses: str = limited(choices=MASSES, default="scores")
    group_stop: str = limited(choices=GROUP_STOPS, default="all")

    @property
    def native(self) -> Any:
        """The rule in the simulator's form."""
        return _simulator.rule(
            self.key_share,
            self.value_share,
            self.sinks,
            self.globals,
            self.locals,
            self.wave,
            self.filter_important,
            self.running_max,
            self.masses == "weights",
            GROUP_STOPS.index(self.group_stop),
        )


@dataclass
class Decision:
    """Rows read in a step: keys, with the `important` ones first, and values."""

    keys: list[int]
    values: list[int]
    important: int
    waves: int = 0


def enough(known: Any, greatest: Any, count: int, length: int, share: Any) -> bool:
    """Return whether `count` tokens with a sum of weights `known` suffice (lines 11 to 14)."""
    average = (known - greatest) / (count - 1)
    unknown = average * (length - count)
    return bool((known + unknown) * share <= known)


@dataclass
class Aet:
    """State of the heads that share keys, from step to step."""

    rule: Rule
    globals: dict[int, Any] = field(default_factory=dict)  # token: mass
    locals: dict[int, Any] = field(default_factory=dict)
    next: int = 0

    def step(self, weights: list[list[Any]]) -> Decision:
        """Return the rows that a step reads; `weights` [heads][length] are e^(q k / sqrt(d))."""
        rule, length = self.rule, len(weights[0])
        self._admit(length)
        important = [*range(min(rule.sinks, length)), *self.globals, *self.locals]  # line 1
        greatest = [max(own[row] for row in important) for own in weights]  # line 5
        known = [sum(own[row] for row in important) for own in weights]
        values = [
            row
            for row in important
            if not rule.filter_important
            or any(
                own[row] >= g * rule.value_share for own, g in zip(weights, greatest, strict=True)
            )
        ]
        out = Decision(list(important), values, len(important))
        stopped = [False] * len(weights)
        unknown = [row for row in reversed(range(length)) if row not in set(important)]
        for start in range(0, len(unknown), rule.wave):  # line 6
            for row in unknown[start : start + rule.wave]:
                out.keys.append(row)
                wanted = False
                for h, own in enumerate(weights):
                    if stopped[h]:
                        continue
                    known[h] += own[row]
                    if rule.running_max:
                        greatest[h] = max(greatest[h], own[row])
                    wanted |= own[row] >= greatest[h] * rule.value_share  # line 10
                if wanted:
                    out.values.append(row)
            out.waves += 1
            now = [
                enough(known[h], greatest[h], len(out.keys), length, rule.key_share)
                for h in range(len(weights))
            ]
            if rule.group_stop == "masked":
                stopped = now = [a or b for a, b in zip(stopped, now, strict=True)]
            if any(now) if rule.group_stop == "any" else all(now):
                break
        for tokens in (self.globals, self.locals):
            for row in tokens:
                for own, total in zip(weights, known, strict=True):
                    tokens[row] += own[row] if rule.masses == "weights" else own[row] / total
        return out

    def _admit(self, length: int) -> None:
        """Make new tokens local; one that leaves the locals replaces the global token of least mass
        (lines 18 to 20).
        """
        for row in range(self.next, length):
            if row >= self.rule.sinks:
                self.locals[row] = 0
        self.next = length
        while self.locals and min(self.locals) + 1 <= length - self.rule.locals:
            oldest = min(self.locals)
            mass = self.locals.pop(oldest)
            if not self.rule.globals:
                continue
            if len(self.globals) == self.rule.globals:
                del self.globals[min(self.globals, key=lambda row: (self.globals[row], row))]
            self.globals[oldest] = mass
