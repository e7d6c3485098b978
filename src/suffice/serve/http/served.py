"""One of the models at an address: its state, and who uses it or waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Literal

from suffice.checkpoints.files import locate
from suffice.errors import InputError
from suffice.pull import resolve
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front
from suffice.serve.http.turns import Turn
from suffice.serve.processes.local_fleet import files_of

State = Literal["unloaded", "loading", "loaded", "leaving"]


class Served:
    """One of the models.

    Attributes:
        users: Requests that are being read, checked or answered, besides those with a job.
        used: When the last request ended.
        fault: Why the last try to load it failed.
        waiting: The requests that wait until it is loaded.
    """

    def __init__(self, front: Front) -> None:
        self.front = front
        self.state: State = "unloaded"
        self.users = 0
        self.used = time.monotonic()
        self.fault: str | None = None
        self.waiting: list[Turn] = []
        self._emptied = asyncio.Event()
        front.emptied = self.note

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may give."""
        return (*self.front.settings.names, *self.front.settings.adapters)

    @property
    def listed(self) -> tuple[str, ...]:
        """The names in lists of models: without a path that another name is made of."""
        settings = self.front.settings
        return (*(settings.served_names or settings.names[:1]), *settings.adapters)

    @property
    def idle(self) -> bool:
        """Whether no request uses it."""
        return not self.users and not self.front.jobs

    def note(self) -> None:
        """Note that a request has ended."""
        self.used = time.monotonic()
        if self.idle:
            self._emptied.set()

    async def emptied(self, wanted: Callable[[], object]) -> bool:
        """Wait until no request uses it; return False if that is not `wanted` any more."""
        while not self.idle and wanted():
            self._emptied.clear()
            await self._emptied.wait()
        return bool(wanted())

    def look(self) -> None:
        """Have `emptied` look again."""
        self._emptied.set()

    def left(self, usual: float | None) -> float | None:
        """Return the seconds for which it stays loaded, if no request comes; None: any number.

        `usual` is for how long models stay after a request that says nothing.
        """
        keep = self.front.keep_seconds
        keep = usual if keep is None else keep
        if keep is None or keep < 0:
            return None
        return keep - (time.monotonic() - self.used if self.idle else 0.0)

    def refuse(self, problem: Problem) -> None:
        """End the waits for it."""
        for turn in self.waiting:
            turn.over.set_exception(problem)
            turn.over.exception()  # a wait that its client has left needs no line in the log
        self.waiting.clear()

    def waits(self, ident: str, key: str) -> Turn | None:
        """Return the wait of a request of this id and API key; None if there is none."""
        same = self.front.same
        found = (each for each in self.waiting if each.ident == ident and same(each.key, key))
        return next(found, None)

    def size(self) -> int:
        """Return the bytes of its weights; of its files, if it was never loaded."""
        if (facts := self.front.instance.facts) is not None:
            return facts.weight_bytes
        model = self.front.settings.options.get("model")
        with contextlib.suppress(InputError):
            return sum(file[1] for file in files_of(locate(resolve(str(model)))))
        return 0
