"""`suffice hw plot`: plots of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suffice.errors import InputError


def run(folders: list[Path], output: Path) -> None:
    """Plot runs, and print the picture's path.

    Raises:
        InputError: A folder holds no run, the picture cannot be written, or matplotlib is missing.
    """
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"-o {output}: must end with .png, .svg or .pdf")
    if not output.parent.is_dir():
        raise InputError(f"-o {output}: there is no folder {output.parent}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise InputError(
            "plots need matplotlib, which is not installed: install suffice[plot]"
        ) from None
    from suffice_hw.kllm import plot as kllm
    from suffice_hw.kllm import report as of_kllm
    from suffice_hw.runs import read_summary
    from suffice_hw.scrooge import plot as scrooge
    from suffice_hw.scrooge import report as of_scrooge

    plots: dict[str, Any] = {of_scrooge.SCHEMA: scrooge, of_kllm.SCHEMA: kllm}
    schemas = {each.SCHEMA: each.FIELDS for each in (of_scrooge, of_kllm)}
    first = read_summary(folders[0], schemas)
    try:
        plots[first["schema"]].draw(folders, output)
    except OSError as error:
        raise InputError(f"-o {output}: {error.strerror}") from None
    print(output)
