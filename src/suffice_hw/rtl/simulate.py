"""Compares a unit's gates, in Amaranth's simulator, with its model."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import ClockDomain, Module, Signal
from amaranth.sim import Simulator

from suffice_hw.rtl.unit import Circuit, Unit, Vector


@dataclass(frozen=True)
class Difference:
    """The first cycle in which gates and model differ."""

    cycle: int
    inputs: Vector
    model: Vector
    gates: Vector


def module_of(unit: Circuit) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """Return a circuit's module, its clock, and its input and output signals by port."""
    module = Module()
    inputs = {name: Signal(width, name=name) for name, width in unit.inputs.items()}
    outputs = {name: Signal(width, name=name) for name, width in unit.outputs.items()}
    domain = ClockDomain("sync", reset_less=True)
    module.domains.sync = domain
    unit.build(module, inputs, outputs)
    return module, domain.clk, inputs, outputs


def differs(unit: Unit, most: int | None = None) -> tuple[int, Difference | None]:
    """Run gates and model on the unit's vectors, or on the first `most` of them.

    Returns:
        The number of cycles run, and the first difference or None.
    """
    module, _, inputs, outputs = module_of(unit)
    model = unit.model()
    found: list[Difference] = []
    cycles = 0

    async def drive(context: Any) -> None:
        nonlocal cycles
        for vector in itertools.islice(unit.vectors(), most):
            for name, value in vector.items():
                context.set(inputs[name], value)
            await context.tick()
            gates = {name: context.get(signal) for name, signal in outputs.items()}
            expected = model.step(vector)
            cycles += 1
            if cycles > unit.fill and gates != expected:
                found.append(Difference(cycles - 1, vector, expected, gates))
                return

    simulator = Simulator(module)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
    return cycles, found[0] if found else None
