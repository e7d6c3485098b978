"""Declares the commands of `suffice hw`: models of accelerators, checked against the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from suffice.cli.eval.options import OUTPUT
from suffice.cli.flags import NUMBER, WHOLE, argument, flag
from suffice.cli.groups import Commands
from suffice.cli.hw.run import RunFlags
from suffice.cli.hw.trace import TraceFlags

hardware = Commands("hw")
UNITS = argument(metavar="UNITS", help="Units such as concat or etu; default: all.")
YOSYS = flag("--yosys", help="Yosys to use instead of the installed one.", environment=False)
FOLDERS = argument(metavar="FOLDERS", help="Folders written by `hw run`.")


@hardware.program()
def run(
    accelerator: Annotated[str, argument(help="scrooge or kllm.")],
    *,
    flags: RunFlags,
) -> None:
    """Simulate a workload and write its cycles, energy and tables by layer."""
    from suffice.cli.hw import run as running

    running.run(accelerator, flags)


@hardware.program()
def compare(folders: Annotated[list[Path], FOLDERS]) -> None:
    """Print the summaries of runs side by side."""
    from suffice.cli.hw import run as running

    running.compare(folders)


@hardware.program()
def plot(
    folders: Annotated[list[Path], FOLDERS],
    output: Annotated[
        Path, flag("-o", "--output", help="Picture to write.", environment=False)
    ] = Path("hw.png"),
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
    part: Annotated[str, argument(help="Memory part: a name, or a TOML file.")],
    *,
    pattern: Annotated[
        str, flag("--pattern", help="stream, random (bursts) or chunks (of 256 B).")
    ] = "stream",
    requests: Annotated[int, flag("--requests", help="Number of bursts.", **WHOLE)] = 100_000,
    load: Annotated[
        float | None,
        flag("--load", help="Share of peak bandwidth; default: all requests at once.", **NUMBER),
    ] = None,
    emit: Annotated[
        str | None,
        flag("--emit", help="Folder for requests and part as DRAMsim3 input.", environment=False),
    ] = None,
) -> None:
    """Simulate reads of a memory and print bandwidth and latency."""
    from suffice.cli.hw import dram as simulating

    simulating.run(part, pattern, requests, load, emit)


@hardware.program()
def validate(
    parts: Annotated[
        list[str] | None,
        argument(metavar="PARTS", help="dram, scrooge, exaq, cost, kllm, rtl; default: all."),
    ] = None,
    output: Annotated[
        str | None, flag("-o", "--output", help="Print every figure, as md, csv or json.")
    ] = None,
    full: Annotated[
        bool, flag("--full", help="Print every figure with its source and note.")
    ] = False,
    trace: Annotated[
        list[Path] | None,
        flag(
            "--trace",
            help="File of `hw trace`: adds checks on the logits of that model.",
            environment=False,
            metavar="FILE",
        ),
    ] = None,
    ran: Annotated[
        list[Path] | None,
        flag(
            "--run",
            help="Folder of `hw run --perplexity-loss`: adds the speed-up by loss.",
            environment=False,
            metavar="FOLDER",
        ),
    ] = None,
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
    units: Annotated[list[str] | None, UNITS] = None,
    *,
    emit: Annotated[
        Path,
        flag("--emit", help="Folder to write to; `make` there simulates.", environment=False),
    ],
    vectors: Annotated[
        int | None, flag("--vectors", help="Maximum vectors per unit; default: all.", **WHOLE)
    ] = None,
    yosys: Annotated[str | None, YOSYS] = None,
) -> None:
    """Write units as Verilog, with test benches and vectors for Icarus."""
    from suffice.cli.hw import rtl

    rtl.emit(tuple(units or ()), emit, vectors, yosys)


@hardware.program()
def area(
    units: Annotated[list[str] | None, UNITS] = None,
    *,
    output: Annotated[str, OUTPUT] = "md",
    yosys: Annotated[str | None, YOSYS] = None,
) -> None:
    """Synthesize units and print their gate counts."""
    from suffice.cli.hw import rtl

    rtl.area(tuple(units or ()), output, yosys)
