"""The commands of `suffice hw`: accelerators as models, and the figures they are held against."""

from __future__ import annotations

from typing import Annotated

import typer

from suffice.cli.eval_options import OUTPUT

hardware = typer.Typer(help="Model accelerators: memory, cycles, area.", no_args_is_help=True)


@hardware.command()
def validate(
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PARTS...]", help="Such as dram; default: all there are."),
    ] = None,
    output: Annotated[str, OUTPUT] = "md",
) -> None:
    """Compute what was published and print both; exit code 1 if a figure misses unexplained."""
    from suffice.cli import hw_validate

    raise typer.Exit(hw_validate.run(tuple(parts or ()), output))
