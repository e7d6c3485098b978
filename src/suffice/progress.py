"""Progress bars on standard error, shown only if that is a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress


def progress_bar(
    *columns: str | rich.progress.ProgressColumn, shown: bool = True
) -> rich.progress.Progress:
    """Return a progress bar, a context manager; a hidden one accepts tasks and shows nothing."""
    from rich.console import Console
    from rich.progress import Progress

    visible = shown and sys.stderr.isatty()
    console = Console(stderr=True, quiet=not visible)
    return Progress(*columns, console=console, disable=not visible)


def counting_bar() -> rich.progress.Progress:
    """Return a progress bar with the count and the remaining time of each task."""
    from rich.progress import BarColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), "{task.completed}/{task.total}")
    return progress_bar(*columns, TimeRemainingColumn())
