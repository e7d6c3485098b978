"""The commands of `suffice hw`: accelerators as models, and the figures they are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suffice.cli.eval.options import OUTPUT
from suffice.cli.flags import NUMBER, WHOLE, flag, with_flags
from suffice.cli.hw.run import RunFlags
from suffice.cli.hw.trace import TraceFlags

hardware = typer.Typer(
    help="Model the accelerators that the implemented papers propose (Scrooge, KLLM, EXAQ): their "
    "memory, cycles, energy and area, held against the published figures. No token passes through "
    "them.",
    no_args_is_help=True,
)
UNITS = typer.Argument(metavar="[UNITS...]", help="Such as concat or etu; default: all.")
YOSYS = flag("--yosys", help="A Yosys to use in place of the extra's.", environment=False)
FOLDERS = typer.Argument(metavar="FOLDERS...", help="What `hw run` has written.")


@hardware.command()
@with_flags
def run(
    accelerator: Annotated[str, typer.Argument(help="scrooge or kllm.")],
    *,
    flags: RunFlags,
) -> None:
    """Simulate a workload and write summary, tables by layer, activity, energy, provenance."""
    from suffice.cli.hw import run as running

    running.run(accelerator, flags)


@hardware.command()
def compare(folders: Annotated[list[Path], FOLDERS]) -> None:
    """Print runs side by side."""
    from suffice.cli.hw import run as running

    running.compare(folders)


@hardware.command()
def plot(
    folders: Annotated[list[Path], FOLDERS],
    output: Annotated[
        Path, flag("-o", "--output", help="The picture to write.", environment=False)
    ] = Path("hw.png"),
) -> None:
    """Draw runs: of scrooge its paper's Figs. 6 to 9, of kllm Figs. 8 to 12."""
    from suffice.cli.hw import plot as plotting

    plotting.run(folders, output)


@hardware.command()
@with_flags
def trace(*, flags: TraceFlags) -> None:
    """Run a model over a text and write its attention's logits, for `hw run scrooge --trace`."""
    from suffice.cli.hw import trace as tracing

    tracing.run(flags)


@hardware.command()
def dram(
    part: Annotated[str, typer.Argument(help="A memory: a name, or a TOML file.")],
    *,
    pattern: Annotated[
        str, flag("--pattern", help="stream, random bursts, or chunks of 256 B.")
    ] = "stream",
    requests: Annotated[int, flag("--requests", help="Bursts to read.", **WHOLE)] = 100_000,
    load: Annotated[
        float | None,
        flag("--load", help="Share of the peak at which they come; default: at once.", **NUMBER),
    ] = None,
    emit: Annotated[
        str | None,
        flag("--emit", help="Write them and the part as DRAMsim3 reads them.", environment=False),
    ] = None,
) -> None:
    """Simulate reads of a memory, print what happened; for DRAMsim3 the same, to compare."""
    from suffice.cli.hw import dram as simulating

    simulating.run(part, pattern, requests, load, emit)


@hardware.command()
def validate(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PARTS...]", help="dram, scrooge, exaq, cost, kllm, rtl; default: all."
        ),
    ] = None,
    output: Annotated[
        str | None, flag("-o", "--output", help="Every figure, as md, csv or json.")
    ] = None,
    full: Annotated[bool, flag("--full", help="Every figure, with its source and note.")] = False,
    trace: Annotated[
        list[Path] | None,
        flag(
            "--trace",
            help="Of a model, from `hw trace`: adds what its own logits give.",
            environment=False,
        ),
    ] = None,
    ran: Annotated[
        list[Path] | None,
        flag(
            "--run",
            help="What `hw run` has written, with a loss: adds the speed-up by loss.",
            environment=False,
        ),
    ] = None,
) -> None:
    """Compute what was published and print both; exit code 1 if a figure misses unexplained."""
    from suffice.cli.hw import validate as validating

    raise typer.Exit(validating.run(tuple(parts or ()), output, full, trace or [], ran or []))


@hardware.command()
def rtl(
    units: Annotated[list[str] | None, UNITS] = None,
    *,
    emit: Annotated[
        Path,
        flag("--emit", help="The folder to write to; `make` there runs it.", environment=False),
    ],
    vectors: Annotated[
        int | None, flag("--vectors", help="Most vectors of a unit; default: all.", **WHOLE)
    ] = None,
    yosys: Annotated[str | None, YOSYS] = None,
) -> None:
    """Write units as Verilog, with test benches for Icarus and the vectors of their models."""
    from suffice.cli.hw import rtl

    rtl.emit(tuple(units or ()), emit, vectors, yosys)


@hardware.command()
def area(
    units: Annotated[list[str] | None, UNITS] = None,
    *,
    output: Annotated[str, OUTPUT] = "md",
    yosys: Annotated[str | None, YOSYS] = None,
) -> None:
    """Synthesise units and print their gates."""
    from suffice.cli.hw import rtl

    rtl.area(tuple(units or ()), output, yosys)
