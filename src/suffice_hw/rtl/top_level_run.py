"""Runs heads through the top level's gates in Amaranth's simulator, with memories around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from amaranth.sim import Simulator

from suffice_hw.rtl.lane_units import bits_of
from suffice_hw.rtl.simulate import module_of
from suffice_hw.rtl.top_level import top_level
from suffice_hw.rtl.top_level_cycles import Times
from suffice_hw.rtl.top_level_model import Head, Outcome
from suffice_hw.rtl.top_level_units import Size
from suffice_hw.rtl.unit import Lanes

KEYS, SCORES, VALUES = 1, 2, 4  # phases
_OLD = 0x4900  # any number: what memories and rows hold where nothing was written
_MEMORIES = ("logits", "weights", "scores")


@dataclass
class _Bench:
    """The memory's side: rows that enter when they have arrived, and the attention buffer."""

    size: Size
    head: Head
    keys: list[int]
    values: list[int]
    cycle: int = 0
    entered: int = 0  # waves of the phase
    kept: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)  # last cycle of each phase
    memories: dict[str, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kept = list(range(self.head.important))
        self.memories = {name: {} for name in _MEMORIES}
        self.rows = {
            KEYS: self.head.padded(self.size, self.head.keys),
            VALUES: self.head.padded(self.size, self.head.values),
        }
        self.waves = [list(wave) for wave in self.head.waves(self.size)]

    def still(self) -> dict[str, int]:
        """Return the ports that stay the same."""
        head = self.head
        (query,) = head.padded(self.size, head.query[None])
        return {
            "length": len(head.keys),
            "important": head.important,
            "spread": head.parts(self.size).bit_length() - 1,
            "scale": head.scale,
            "key_share": bits_of(head.key_share),
            "value_share": bits_of(head.value_share),
            "query": Lanes(len(query), 16).join(query),
        }

    def wave(self, phase: int) -> int | None:
        """Return the rows of the wave that has arrived, as a port; None if there is none."""
        if phase == KEYS:
            waves, times, now = self.waves, self.keys, self.cycle
        elif phase == VALUES:
            step = self.size.lanes // self.head.parts(self.size)
            waves = [self.kept[i : i + step] for i in range(0, len(self.kept), step)]
            times, now = self.values, self.cycle - self.ends[SCORES] - 1
        else:
            return None
        if self.entered >= len(waves) or times[self.entered] > now:
            return None
        numbers = [x for row in waves[self.entered] for x in self.rows[phase][row]]
        unused = self.size.lanes * self.size.width - len(numbers)
        numbers += [_OLD] * unused
        return Lanes(len(numbers), 16).join(numbers)

    def buffer(self, context: Any, outputs: dict[str, Any]) -> dict[str, int]:
        """Write what the gates write in this cycle; return what they read, for the next one."""
        read = {}
        word = Lanes(self.size.lanes, 16)
        unknown = word.join([_OLD] * word.count)
        for name, memory in self.memories.items():
            read[name] = memory.get(context.get(outputs[f"{name}_from"]), unknown)
            lanes, place = (context.get(outputs[f"{name}_{end}"]) for end in ("write", "to"))
            if lanes:
                old = word.split(memory.get(place, unknown))
                new = word.split(context.get(outputs[f"{name}_word"]))
                chosen = [new[i] if lanes >> i & 1 else old[i] for i in range(word.count)]
                memory[place] = word.join(chosen)
        return read


@dataclass(frozen=True)
class Job:
    """A head, whose waves arrive at some cycles; see `suffice_hw.rtl.top_level_cycles.timed`."""

    head: Head
    keys: list[int]
    values: list[int]


def run(size: Size, jobs: list[Job]) -> list[tuple[Outcome, Times]]:
    """Run heads one after the other; return what the gates computed, and when phases ended."""
    module, _, inputs, outputs = module_of(top_level(size))
    found: list[tuple[Outcome, Times]] = []

    async def drive(context: Any) -> None:
        for job in jobs:
            bench = _Bench(size, job.head, job.keys, job.values)
            await _compute(bench, context, inputs, outputs)
            known = context.get(outputs["known"])
            bits = np.array(bench.output, np.uint16)[: len(job.head.query)]
            times = Times(bench.ends[KEYS], bench.ends[SCORES], bench.cycle)
            found.append((Outcome(known, bench.kept, bits.view(np.float16)), times))

    simulator = Simulator(module)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
    return found


async def _compute(
    bench: _Bench, context: Any, inputs: dict[str, Any], outputs: dict[str, Any]
) -> None:
    """Start a head, and give and take what its ports ask for until it is done."""
    for name, value in bench.still().items():
        context.set(inputs[name], value)
    context.set(inputs["valid"], 0)
    context.set(inputs["start"], 1)
    await context.tick()
    context.set(inputs["start"], 0)
    last = 0
    while True:
        bench.cycle += 1
        phase = context.get(outputs["phase"])
        if phase != last:
            bench.entered, last = 0, phase
        bench.ends[phase] = bench.cycle
        rows = bench.wave(phase)
        context.set(inputs["valid"], int(rows is not None))
        if rows is not None:
            context.set(inputs["rows"], rows)
            bench.entered += context.get(outputs["take"])
        if context.get(outputs["keep"]):
            bench.kept.append(context.get(outputs["position"]))
        if context.get(outputs["y_valid"]):
            bench.output += Lanes(bench.size.width, 16).split(context.get(outputs["y"]))
        done, read = context.get(outputs["done"]), bench.buffer(context, outputs)
        await context.tick()
        if done:
            return
        for name, data in read.items():
            context.set(inputs[f"{name}_data"], data)
