"""Looks at the engine, a few a second, while somebody watches its server's page."""

from __future__ import annotations

import threading
from collections.abc import Callable

from suffice.engine.work import Look

LOOK_SECONDS = 0.25


class Lookout:
    """Looks from a thread of its own: a look waits for the end of a step, and tokens must not."""

    def __init__(
        self, look: Callable[[], Look], send: Callable[[Look], None], seconds: float = LOOK_SECONDS
    ) -> None:
        self._look, self._send, self._seconds = look, send, seconds
        self._stop: threading.Event | None = None  # of the thread that looks, if there is one

    def watch(self, on: bool) -> None:
        """Begin to look, or stop."""
        if on and self._stop is None:
            self._stop = threading.Event()
            thread = threading.Thread(target=self._run, args=(self._stop,), daemon=True)
            thread.start()
        elif not on and self._stop is not None:
            self._stop.set()
            self._stop = None

    def close(self) -> None:
        """Stop."""
        self.watch(False)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._send(self._look())
            stop.wait(self._seconds)
