"""A progress bar for many requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from suffice.engine.request import Request
from suffice.progress import progress_bar


@contextlib.contextmanager
def showing(requests: list[Request], *, shown: bool) -> Iterator[Callable[[], None]]:
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
