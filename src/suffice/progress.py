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
PROMPT_SECONDS = 1.0  # of a prompt, after which a bar shows how far it is
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
    *columns: str | rich.progress.ProgressColumn, shown: bool = True, transient: bool = False
) -> rich.progress.Progress:
    """Return a progress bar, a context manager; a hidden one accepts tasks and shows nothing.

    Nothing is left of a `transient` one at its end.
    """
    from rich.console import Console
    from rich.progress import Progress

    visible = shown and sys.stderr.isatty()
    console = Console(stderr=True, quiet=not visible)
    return Progress(*columns, console=console, disable=not visible, transient=transient)


def counting_bar() -> rich.progress.Progress:
    """Return a progress bar with the count and the remaining time of each task."""
    from rich.progress import BarColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), "{task.completed}/{task.total}")
    return progress_bar(*columns, TimeRemainingColumn())


def counted(
    what: str,
    total: int,
    steps: Iterable[T],
    before: int = 0,
    done_after: Callable[[T], int] | None = None,
) -> Iterator[T]:
    """Yield steps of long work, and show how many of `total` are done and the time that is left.

    `before` of them were done by an earlier run. `done_after` gives how many are done after a step;
    without it, each step is one. A terminal gets a bar, another standard error a line from time to
    time.
    """
    counts = (
        (step, done_after(step)) if done_after else (step, done)
        for done, step in enumerate(steps, before + 1)
    )
    if sys.stderr.isatty():
        with counting_bar() as bar:
            line = bar.add_task(what, total=total, completed=before)
            for step, done in counts:
                yield step
                bar.update(line, completed=done)
        return
    began = shown = time.monotonic()
    for step, done in counts:
        yield step
        now = time.monotonic()
        if now - shown >= EVERY or done == total:
            left = (now - began) / (done - before) * (total - done)
            print(
                f"{what}: {done} of {total}, about {left:.0f} s left", file=sys.stderr, flush=True
            )
            shown = now


class PromptBar:
    """A bar on a terminal that shows how far a prompt is, from its second second on.

    Nothing is left of it once the prompt is done, or after `close`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._bar: rich.progress.Progress | None = None
        self._over = not sys.stderr.isatty()

    def show(self, done: int, total: int, cached: int) -> None:
        """Show that `done` of `total` tokens are done; the `cached` ones took no time."""
        if self._over:
            return
        if done >= total:
            self.close()
            return
        seconds = self._clock() - self._began
        if seconds < PROMPT_SECONDS or done <= cached:
            return
        if self._bar is None:
            from rich.progress import BarColumn

            self._bar = progress_bar("prompt", BarColumn(), "{task.fields[said]}", transient=True)
            self._bar.add_task("", total=total, said="")
            self._bar.start()
        speed = (done - cached) / seconds
        left = f"about {(total - done) / speed:,.0f} s left"
        said = f"{done:,}/{total:,} tokens, {speed:,.0f} tokens/s, {left}"
        self._bar.update(self._bar.task_ids[0], completed=done, said=said)

    def close(self) -> None:
        """Remove it."""
        self._over = True
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Running(Protocol):
    """A request that is run: whether it has ended, its prompt, and samples with their `tokens`."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """Its prompt."""
        ...

    @property
    def prompt_done(self) -> int:
        """How many of these tokens are done."""
        ...

    @property
    def samples(self) -> Sequence[Any]:
        """What is sampled for it."""
        ...


@contextlib.contextmanager
def showing(requests: Sequence[Running], *, shown: bool) -> Iterator[Callable[[], None]]:
    """Show how many requests and tokens of their prompts are done, and tokens that have come.

    Yields what updates it.
    """
    from rich.progress import BarColumn, TimeElapsedColumn

    done = "{task.completed}/{task.total} requests"
    tokens = "{task.fields[prompts]}/{task.fields[all]} of prompts, {task.fields[tokens]} tokens"
    with progress_bar(done, BarColumn(), tokens, TimeElapsedColumn(), shown=shown) as bar:
        whole = sum(len(request.tokens) for request in requests)
        task = bar.add_task("", total=len(requests), tokens=0, prompts=0, all=whole)

        def update() -> None:
            if not bar.disable:
                finished = sum(request.finished for request in requests)
                tokens = sum(len(s.tokens) for request in requests for s in request.samples)
                prompts = sum(request.prompt_done for request in requests)
                bar.update(task, completed=finished, tokens=tokens, prompts=prompts)

        yield update
