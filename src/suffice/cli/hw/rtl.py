"""`suffice hw rtl` and `area`: units as Verilog, and their gate counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from suffice.cli.eval.results import check_output, drawn
from suffice.errors import InputError
from suffice.progress import counting_bar
from suffice_hw.cost.logic import Technology
from suffice_hw.rtl import checks

COLUMNS = ("unit", "what", "GE", "cells", "flip-flops", "um2")


def _need_packages(yosys: str | None) -> None:
    if missing := checks.missing(yosys):
        raise InputError(f"units need packages: {missing}")


def emit(names: tuple[str, ...], folder: Path, most: int | None, command: str | None) -> None:
    """Write units (default: all) to a folder, and print how to simulate them.

    Raises:
        InputError: A unit is unknown, the folder is invalid, packages are missing, or Yosys fails.
    """
    _need_packages(command)
    from suffice_hw.rtl import emit as rtl
    from suffice_hw.rtl.units import UNITS, chosen

    units = chosen(names, UNITS)
    if most is not None and most < 1:
        raise InputError(f"--vectors {most}: must be at least 1")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--emit {folder}: is a file: give a folder")
    if not folder.absolute().parent.is_dir():
        raise InputError(f"--emit {folder}: there is no folder {folder.parent}")
    with counting_bar() as bar:
        task = bar.add_task("units", total=len(units))
        rtl.write(units, folder, command, most, lambda done: bar.update(task, completed=done))
    print(f"{folder}: {len(units)} units; simulate them with Icarus: make -C {folder}")


def area(names: tuple[str, ...], output: str, command: str | None) -> None:
    """Print the gate counts of units (default: all).

    Raises:
        InputError: A unit or output format is unknown, packages are missing, or Yosys fails.
    """
    check_output(output)
    _need_packages(command)
    from suffice_hw.rtl.units import CIRCUITS, chosen
    from suffice_hw.rtl.yosys import synthesise

    units, found = chosen(names, CIRCUITS), []
    um2 = Technology.load().um2_per_ge
    with counting_bar() as bar:
        task = bar.add_task("units", total=len(units))
        for unit in units:
            found.append(synthesise(unit, command))
            bar.advance(task)
    rows = [
        (net.name, unit.what, f"{net.gates:.0f}", net.cells, net.flops, f"{net.gates * um2:.0f}")
        for net, unit in zip(found, units, strict=True)
    ]
    print(drawn([dataclasses.asdict(net) for net in found], COLUMNS, rows, output))
