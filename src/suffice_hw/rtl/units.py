"""All units by name."""

from __future__ import annotations

from suffice.errors import unknown
from suffice_hw.rtl import exaq_unit, kllm_units, scrooge_units
from suffice_hw.rtl.unit import Unit

UNITS: dict[str, Unit] = {
    unit.name: unit
    for make in (*kllm_units.UNITS, *scrooge_units.UNITS, *exaq_unit.UNITS)
    for unit in (make(),)
}


def chosen(names: tuple[str, ...]) -> list[Unit]:
    """Return units by their names; without names, all units.

    Raises:
        InputError: A name is unknown.
    """
    for name in names:
        if name not in UNITS:
            raise unknown("unit", name, UNITS)
    return [UNITS[name] for name in names or UNITS]
