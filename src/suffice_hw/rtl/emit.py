"""Units as Verilog, with test benches and test vectors, for Icarus or another simulator."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from suffice.errors import InputError
from suffice_hw.rtl import yosys
from suffice_hw.rtl.unit import Unit, Vector

_BENCH = """\
// In each cycle inputs are applied, the clock rises, and outputs are compared with the model's.
`timescale 1ns/1ps
module {name}_tb;
  reg clk = 0;
  reg [{last_in}:0] stimuli [0:{last}];
  reg [{last_out}:0] expected [0:{last}];
  reg [{last_in}:0] in;
  wire [{last_out}:0] out;
  integer i, wrong;

  {name} unit ({ports});

  initial begin
    $readmemh("{name}.in.hex", stimuli);
    $readmemh("{name}.out.hex", expected);
    wrong = 0;
    for (i = 0; i <= {last}; i = i + 1) begin
      in = stimuli[i];
      #1 clk = 1;
      #1 if (i >= {fill} && out !== expected[i]) begin
        wrong = wrong + 1;
        if (wrong <= 5) $display("{name} %0d: in %h, out %h, expected %h", i, in, out, expected[i]);
      end
      #1 clk = 0;
      #1;
    end
    if (wrong == 0) $display("PASS {name}: %0d vectors", i);
    else $display("FAIL {name}: %0d of %0d vectors", wrong, i);
    $finish;
  end
endmodule
"""
_MAKEFILE = """\
# Simulates every unit: make
UNITS := {names}
.PHONY: all $(UNITS)
all: $(UNITS)
$(UNITS):
\ticarus=$@.vvp && iverilog -g2005 -o $$icarus $@_tb.v $@.v && vvp -n $$icarus | tee $@.log
\tgrep -q "^PASS" $@.log
"""


def vectors(unit: Unit, most: int | None = None) -> tuple[list[str], list[str]]:
    """Return inputs and expected outputs in hexadecimal, one line per cycle.

    The first port has the lowest bits.

    Args:
        unit: The unit.
        most: Maximum number of cycles; default: all vectors.
    """
    model, inputs, outputs = unit.model(), [], []
    for i, vector in enumerate(unit.vectors()):
        if i == most:
            break
        inputs.append(_line(unit.inputs, vector))
        outputs.append(_line(unit.outputs, model.step(vector)))
    return inputs, outputs


def _line(ports: dict[str, int], values: Vector) -> str:
    joined, place = 0, 0
    for name, width in ports.items():
        joined |= values[name] << place
        place += width
    return f"{joined:0{-(-place // 4)}x}"


def bench(unit: Unit, cycles: int) -> str:
    """Return a test bench that runs `cycles` cycles."""
    ports = [".clk(clk)"]
    for side, widths in (("in", unit.inputs), ("out", unit.outputs)):
        place = 0
        for name, width in widths.items():
            ports.append(f".{name}({side}[{place + width - 1}:{place}])")
            place += width
    return _BENCH.format(
        name=unit.name,
        last=cycles - 1,
        fill=unit.fill,
        last_in=sum(unit.inputs.values()) - 1,
        last_out=sum(unit.outputs.values()) - 1,
        ports=", ".join(ports),
    )


def write(
    units: list[Unit],
    folder: Path,
    command: str | None = None,
    most: int | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> None:
    """Write units, test benches, vectors and a Makefile; an error leaves no files.

    Args:
        units: The units.
        folder: The folder to write to; created if it does not exist.
        command: The Yosys to use instead of the extra's.
        most: Maximum number of vectors per unit; default: all.
        report: Called with the number of units done.

    Raises:
        InputError: The folder cannot be written to, or Yosys fails.
    """
    folder = folder.absolute()  # "." has no name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
            part = Path(name)
            for done, unit in enumerate(units, 1):
                _write_unit(unit, part, command, most)
                report(done)
            names = " ".join(unit.name for unit in units)
            (part / "Makefile").write_text(_MAKEFILE.format(names=names), encoding="ascii")
            folder.mkdir(exist_ok=True)
            for path in part.iterdir():
                path.replace(folder / path.name)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None


def _write_unit(unit: Unit, folder: Path, command: str | None, most: int | None) -> None:
    inputs, outputs = vectors(unit, most)
    texts = {
        f"{unit.name}.v": yosys.verilog(unit, command),
        f"{unit.name}_tb.v": bench(unit, len(inputs)),
        f"{unit.name}.in.hex": "\n".join(inputs) + "\n",
        f"{unit.name}.out.hex": "\n".join(outputs) + "\n",
    }
    for name, made in texts.items():
        (folder / name).write_text(made, encoding="ascii")
