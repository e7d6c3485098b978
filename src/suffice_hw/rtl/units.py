"""All units by name, and with them the circuits whose gates are counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from suffice.errors import unknown
from suffice_hw.rtl import exaq_unit, kllm_units, lane_units, scrooge_units
from suffice_hw.rtl.top_level import top_level
from suffice_hw.rtl.top_level_parts import control, parts
from suffice_hw.rtl.top_level_units import Size
from suffice_hw.rtl.unit import Circuit, Unit

C = TypeVar("C", bound=Circuit)
SMALL = Size(2, 2, 2)  # a top level that Yosys can take in one piece
_MAKERS = (*kllm_units.UNITS, *scrooge_units.UNITS, *lane_units.UNITS, *exaq_unit.UNITS)
UNITS: dict[str, Unit] = {unit.name: unit for make in _MAKERS for unit in (make(),)}
_TOP = (control(), top_level(SMALL), *(circuit for circuit, _ in parts(SMALL)))
CIRCUITS: dict[str, Circuit] = {circuit.name: circuit for circuit in (*UNITS.values(), *_TOP)}


def chosen(names: tuple[str, ...], known: Mapping[str, C]) -> list[C]:
    """Return circuits by their names; without names, all of them.

    Raises:
        InputError: A name is unknown.
    """
    for name in names:
        if name not in known:
            raise unknown("unit", name, known)
    return [known[name] for name in names or known]
