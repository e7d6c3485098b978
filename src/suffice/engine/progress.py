"""A progress bar for many requests."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from suffice.engine.request import Request

if TYPE_CHECKING:
    import rich.progress


class Progress:
    """Shows, on standard error, how many of some requests are done and how fast tokens come."""

    def __init__(self, requests: list[Request], *, shown: bool) -> None:
        self._requests = requests
        self._bar = _bar() if shown else None
        self._task = (
            self._bar.add_task("generate", total=len(requests), tokens=0) if self._bar else None
        )

    def update(self) -> None:
        """Show the state of the requests."""
        if self._bar is not None and self._task is not None:
            done = sum(request.finished for request in self._requests)
            tokens = sum(len(s.tokens) for request in self._requests for s in request.samples)
            self._bar.update(self._task, completed=done, tokens=tokens)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> rich.progress.Progress:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.completed}/{task.total} requests"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[tokens]} tokens"),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
    )
