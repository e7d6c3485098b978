"""When the top level's phases end, in closed form, and when those of the simulator end.

The gates take exactly these cycles. `suffice_hw.scrooge.simulate` has assumed latencies for the
same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from suffice_hw import _simulator
from suffice_hw.rtl.fp16 import DIVIDE_CYCLES
from suffice_hw.rtl.lane_units import EXPONENT_CYCLES
from suffice_hw.rtl.scrooge_units import ETU_CYCLES
from suffice_hw.rtl.top_level_units import Size
from suffice_hw.scrooge import simulate
from suffice_hw.scrooge.design import Design, Shape


@dataclass(frozen=True)
class Times:
    """Cycles, from the start, at which the keys, the scores and the output end."""

    keys_end: int
    scores_end: int
    end: int


@dataclass(frozen=True)
class Work:
    """What a head reads: tokens of each wave of keys, and of all waves of values.

    `parts`: lanes that compute a token together; `first`: waves of important tokens.
    """

    parts: int
    waves: list[int]
    first: int
    kept: int


def waves_of(important: int, others: int, per_wave: int) -> tuple[list[int], int]:
    """Return the tokens of each wave, and how many waves have important tokens."""
    found = [
        min(per_wave, count - start)
        for count in (important, others)
        for start in range(0, count, per_wave)
    ]
    return found, -(-important // per_wave)


def timed(size: Size, work: Work, keys: list[int], values: list[int]) -> Times:
    """Return when the phases end.

    Args:
        size: The top level.
        work: What the head reads.
        keys: The cycle at which each wave of keys enters.
        values: The cycle at which each wave of values can enter, after the scores' end.
    """
    to_logit = 1 + size.lane_levels + (work.parts.bit_length() - 1) + 1
    logits = [time + to_logit for time in keys[: len(work.waves)]]
    ready = logits[work.first - 1] + size.levels + 1  # the offset of all exponents
    read = seen = result = 0
    for place, (logit, wave) in enumerate(zip(logits, work.waves, strict=True)):
        read = max(read + 1, ready, logit + 1)
        weighed, before = read + 1 + EXPONENT_CYCLES, result
        result = weighed + size.levels + 1 + ETU_CYCLES
        # the VSU takes a token per cycle, and skips important waves
        seen = max(seen, weighed + 2, before + 2) + (wave if place >= work.first else 1)
    selected = max(result + 1, seen) + 1
    waves = -(-work.kept * work.parts // size.lanes)
    scored = selected + waves + DIVIDE_CYCLES
    taken = scored
    for time in values[:waves]:
        taken = max(taken + 1, scored + 2, scored + 1 + time)
    turns = size.levels - (work.parts.bit_length() - 1)
    return Times(result, scored, taken + 2 + turns + work.parts - 1)


def compared(design: Design, shape: Shape, decision: Any, length: int) -> tuple[Times, Times]:
    """Return the times of the gates and of the simulator for a head, with the same memory.

    Each wave of keys enters when it does in the simulator. Values arrive evenly until the
    simulator's last one.
    """
    part = design.part()
    start = part.trefi_ns / 2
    where = simulate.place(shape, 0, 0)

    def times(count: int) -> tuple[float, float, float]:
        some = decision.keys[:count]
        waves = max(0, count - decision.important)
        shorter = _simulator.Decision(some, decision.values, min(count, decision.important), waves)
        found = simulate.simulation(design, part, shape).run_head(shorter, length, where, start)
        return tuple(time - start for time in found[:3])

    others = len(decision.keys) - decision.important
    waves, first = waves_of(decision.important, others, design.wave(shape))
    keys, count = [], 0
    for place, wave in enumerate(waves):
        count += wave
        check = design.etu_cycles if place >= first else 0
        keys.append(math.ceil(times(count)[0]) - design.pipe_cycles - check)
    model = Times(*(math.ceil(time) for time in times(count)))
    size, kept = Size(design.lanes, design.lane_width), len(decision.values)
    work = Work(design.lanes_per_token(shape), waves, first, kept)
    turns = -(-kept // design.wave(shape))
    last = model.end - design.sum_cycles - model.scores_end
    values = [math.ceil(last * (i + 1) / turns) for i in range(turns)]
    return timed(size, work, keys, values), model
