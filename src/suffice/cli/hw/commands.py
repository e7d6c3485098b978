"""Declares the commands of `suffice hw`: models of accelerators, checked against the papers."""

from __future__ import annotations

from pathlib import Path

import click

from suffice.cli.eval.options import OUTPUT
from suffice.cli.flags import REQUIRED, argument, flag
from suffice.cli.groups import Commands
from suffice.cli.hw.run import RunFlags
from suffice.cli.hw.trace import TraceFlags

hardware = Commands("hw")
UNITS = argument(None, "Units such as concat or etu; default: all.", metavar="UNITS")
YOSYS = flag(None, "--yosys", "Yosys to use instead of the installed one.", environment=False)
FOLDERS = argument(REQUIRED, "Folders written by `hw run`.", metavar="FOLDERS")


@hardware.program()
def run(
    accelerator: str = argument(REQUIRED, "scrooge or kllm."),
    *,
    flags: RunFlags,
) -> None:
    """Simulate a workload and write its cycles, energy and tables by layer."""
    from suffice.cli.hw import run as running

    running.run(accelerator, flags)


@hardware.program()
def compare(folders: list[Path] = FOLDERS) -> None:
    """Print the summaries of runs side by side."""
    from suffice.cli.hw import run as running

    running.compare(folders)


@hardware.program()
def plot(
    folders: list[Path] = FOLDERS,
    output: Path = flag(Path("hw.png"), "-o --output", "Picture to write.", environment=False),
) -> None:
    """Plot runs as in the papers: figures 6 to 9 for scrooge, 8 to 12 for kllm."""
    from suffice.cli.hw import plot as plotting

    plotting.run(folders, output)


@hardware.program()
def trace(*, flags: TraceFlags) -> None:
    """Write a model's attention logits on a text, for `hw run scrooge --trace`."""
    from suffice.cli.hw import trace as tracing

    tracing.run(flags)


@hardware.program()
def dram(
    part: str = argument(REQUIRED, "Memory part: a name, or a TOML file."),
    *,
    pattern: str = flag("stream", "--pattern", "stream, random (bursts) or chunks (of 256 B)."),
    requests: int = flag(100_000, "--requests", "Number of bursts."),
    load: float | None = flag(
        None, "--load", "Share of peak bandwidth; default: all requests at once."
    ),
    emit: str | None = flag(
        None, "--emit", "Folder for requests and part as DRAMsim3 input.", environment=False
    ),
) -> None:
    """Simulate reads of a memory and print bandwidth and latency."""
    from suffice.cli.hw import dram as simulating

    simulating.run(part, pattern, requests, load, emit)


@hardware.program()
def validate(
    parts: list[str] | None = argument(
        None, "dram, scrooge, exaq, cost, kllm, rtl; default: all.", metavar="PARTS"
    ),
    output: str | None = flag(None, "-o --output", "Print every figure, as md, csv or json."),
    full: bool = flag(False, "--full", "Print every figure with its source and note."),
    trace: list[Path] | None = flag(
        None,
        "--trace",
        "File of `hw trace`: adds checks on the logits of that model.",
        environment=False,
        metavar="FILE",
    ),
    ran: list[Path] | None = flag(
        None,
        "--run",
        "Folder of `hw run --perplexity-loss`: adds the speed-up by loss.",
        environment=False,
        metavar="FOLDER",
    ),
) -> None:
    """Compare the models' figures with the published ones.

    The exit code is 1 if a miss has no known reason.
    """
    from suffice.cli.hw import validate as validating

    raise click.exceptions.Exit(
        validating.run(tuple(parts or ()), output, full, trace or [], ran or [])
    )


@hardware.program()
def rtl(
    units: list[str] | None = UNITS,
    *,
    emit: Path = flag(
        REQUIRED, "--emit", "Folder to write to; `make` there simulates.", environment=False
    ),
    vectors: int | None = flag(None, "--vectors", "Maximum vectors per unit; default: all."),
    yosys: str | None = YOSYS,
) -> None:
    """Write units as Verilog, with test benches and vectors for Icarus."""
    from suffice.cli.hw import rtl

    rtl.emit(tuple(units or ()), emit, vectors, yosys)


@hardware.program()
def area(
    units: list[str] | None = UNITS,
    *,
    output: str = OUTPUT(),
    yosys: str | None = YOSYS,
) -> None:
    """Synthesize units and print their gate counts."""
    from suffice.cli.hw import rtl

    rtl.area(tuple(units or ()), output, yosys)
