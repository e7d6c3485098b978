"""Progress on standard error: bars, shown only if that is a terminal, and lines of long work."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import rich.progress
    import rich.status

EVERY = 10.0  # seconds between lines of progress
T = TypeVar("T")

_status: rich.status.Status | None = None  # the one that is shown


@contextlib.contextmanager
def status(text: str) -> Iterator[Callable[[float], None]]:
    """Show on a terminal what is being done; yields a function that adds how much of it is done.

    Within another status, that one is used.
    """
    global _status
    if not sys.stderr.isatty():
        yield lambda share: None
        return
    if (outer := _status) is not None:
        yield lambda share: outer.update(f"{text}: {share:.0%}")
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as shown:
        _status = shown
        try:
            yield lambda share: shown.update(f"{text}: {share:.0%}")
        finally:
            _status = None


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


def counted(what: str, total: int, steps: Iterable[T], before: int = 0) -> Iterator[T]:
    """Yield steps of long work, and show how many of `total` are done and the time that is left.

    `before` of them were done by an earlier run. A terminal gets a bar, another standard error a
    line from time to time.
    """
    if sys.stderr.isatty():
        with counting_bar() as bar:
            line = bar.add_task(what, total=total, completed=before)
            for step in steps:
                yield step
                bar.update(line, advance=1)
        return
    began = shown = time.monotonic()
    for done, step in enumerate(steps, before + 1):
        yield step
        now = time.monotonic()
        if now - shown >= EVERY or done == total:
            left = (now - began) / (done - before) * (total - done)
            print(
                f"{what}: {done} of {total}, about {left:.0f} s left", file=sys.stderr, flush=True
            )
            shown = now


class Running(Protocol):
    """A request that is run: whether it has ended, and samples, each with its `tokens`."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        ...

    @property
    def samples(self) -> Sequence[Any]:
        """What is sampled for it."""
        ...


@contextlib.contextmanager
def showing(requests: Sequence[Running], *, shown: bool) -> Iterator[Callable[[], None]]:
    """Show how many of some requests are done and how fast tokens come; yields what updates it."""
    from rich.progress import BarColumn, TimeElapsedColumn

    done = "{task.completed}/{task.total} requests"
    columns = (done, BarColumn(), "{task.fields[tokens]} tokens", TimeElapsedColumn())
    with progress_bar(*columns, shown=shown) as bar:
        task = bar.add_task("", total=len(requests), tokens=0)

        def update() -> None:
            if not bar.disable:
                finished = sum(request.finished for request in requests)
                tokens = sum(len(s.tokens) for request in requests for s in request.samples)
                bar.update(task, completed=finished, tokens=tokens)

        yield update
