"""The parts of a top level, to count its gates: all units, and the control that remains."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module

from suffice_hw.rtl import lane_units, scrooge_units
from suffice_hw.rtl.scrooge_units import PLACE_BITS
from suffice_hw.rtl.top_level import add_top_level
from suffice_hw.rtl.top_level_units import Size, Units
from suffice_hw.rtl.unit import Circuit


class _Outside(Units):
    """Units that are not there: what they are given are outputs, what they return are inputs."""

    def __init__(self, module: Any, ports: dict[str, Any]) -> None:
        super().__init__(module)
        self.ports = ports

    def give(self, name: str, *values: Any) -> None:
        for i, value in enumerate(values):
            own = Module()
            own.d.comb += self.ports[f"{name}_{i}"].eq(value)
            self.module.submodules += own

    def lane(self, place: int, *ports: Any) -> tuple[Any, list[Any]]:
        _, query, score, values, clear, other, fold = ports  # rows go to the lane directly
        self.give(f"lane{place}_query", *query)
        self.give(f"lane{place}_other", *other)
        self.give(f"lane{place}", score, values, clear, fold)
        sums, width = self.ports[f"lane{place}_sums"], len(query)
        return self.ports[f"lane{place}_total"], [sums.word_select(i, 16) for i in range(width)]

    def tree(self, totals: list[Any], spread: Any, scale: Any) -> list[Any]:
        self.give("tree", *totals)
        return [self.ports[f"logit{i}"] for i in range(len(totals))]

    def exponent(self, place: int, x: Any, offset: Any) -> Any:
        self.give(f"exponent{place}", x, offset)
        return self.ports[f"weight{place}"]

    def max_and_sum(self, logits: list[Any], weights: list[Any]) -> tuple[Any, Any]:
        self.give("max", *logits)
        self.give("sum", *weights)
        return self.ports["peak"], self.ports["total"]

    def etu(self, *ports: Any) -> tuple[Any, Any]:
        self.give("etu", *ports)
        return self.ports["enough"], self.ports["of"]

    def vsu(self, *ports: Any) -> tuple[Any, Any]:
        self.give("vsu", *ports)
        return self.ports["keeps"], self.ports["place"]

    def divide(self, place: int, a: Any, b: Any) -> Any:
        self.give(f"divider{place}", a, b)
        return self.ports[f"quotient{place}"]


def _ports(size: Size) -> tuple[dict[str, int], dict[str, int]]:
    """Return what the units return and what they are given, with the width of each."""
    returned = {"peak": 16, "total": 16, "enough": 1, "of": 16}
    returned |= {"keeps": 1, "place": PLACE_BITS}
    groups = {"tree": [16] * size.lanes, "max": [16] * size.lanes, "sum": [16] * size.lanes}
    groups |= {"etu": [16] * 5, "vsu": [16, 16, 16, 1]}
    for i in range(size.lanes):
        names = (f"lane{i}_total", f"logit{i}", f"weight{i}", f"quotient{i}")
        returned |= dict.fromkeys(names, 16)
        returned |= {f"lane{i}_sums": size.width * 16}
        groups |= dict.fromkeys((f"lane{i}_query", f"lane{i}_other"), [16] * size.width)
        groups |= {f"lane{i}": [16, 1, 1, 1]}
        groups |= {f"exponent{i}": [16, 16], f"divider{i}": [16, 16]}
    given = {f"{name}_{i}": w for name, widths in groups.items() for i, w in enumerate(widths)}
    return returned, given


def control(size: Size | None = None) -> Circuit:
    """Return the top level without its units: counters, phases, the query's way to the lanes."""
    size = size or Size()
    returned, given = _ports(size)

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        add_top_level(module, inputs, outputs, size, _Outside(module, inputs | outputs))

    return Circuit(
        f"top_level_control_{size.lanes}x{size.width}",
        "Scrooge's top level without its units",
        size.inputs | returned,
        size.outputs | given,
        build,
    )


def parts(size: Size) -> list[tuple[Circuit, int]]:
    """Return the circuits whose gates add up to those of a top level, with their numbers."""
    several = (lane_units.exponent, scrooge_units.fp16_divide)
    return [
        (lane_units.multiplier_lane(size.width), size.lanes),
        (lane_units.adder_tree(size.lanes), 1),
        *((unit(), size.lanes) for unit in several),
        (scrooge_units.max_and_sum(size.lanes), 1),
        (scrooge_units.etu(), 1),
        (scrooge_units.vsu(), 1),
        (control(size), 1),
    ]
