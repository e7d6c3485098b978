"""`suffice report`: makes a page of result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suffice.cli.output import busy
from suffice.errors import InputError


def run(results: Sequence[Path], output: Path) -> None:
    """Write the report of files and folders, and print its path.

    Raises:
        InputError: A file is no result, the page cannot be written, or matplotlib is missing.
    """
    try:
        _check_output(results, output)
        _check_matplotlib()
        from suffice.eval.report import page, write
        from suffice.eval.report_read import read

        with busy("drawing"):
            write(output, page(read(results)))
    except OSError as error:  # a path that cannot even be checked
        raise InputError(f"{error.filename}: {error.strerror}") from None
    print(output)


def _check_output(results: Sequence[Path], output: Path) -> None:
    if output.is_dir():
        raise InputError(f"-o {output} is a folder: give a file, such as {output / 'report.html'}")
    if not output.parent.is_dir():
        raise InputError(f"-o {output}: there is no folder {output.parent}")
    if output.suffix == ".json" or output.resolve() in [path.resolve() for path in results]:
        raise InputError(f"-o {output}: a report is HTML and no result: give another name")


def _check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise InputError(
            "the plots of a report need matplotlib, which is not installed: install suffice[plot]"
        ) from None
