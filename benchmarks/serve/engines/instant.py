"""A server whose engine takes no time, so that the front's own work is what is measured.

python -m benchmarks.serve.engines.instant MODEL PORT [PAUSE [FIRST [THINKING]]]

Answers come whole and at once, or a token at a time with PAUSE seconds between them: those of all
requests together, or with FIRST each request's first token as long after it, whatever else runs.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from suffice.engine.work import Delta, EngineStats, Final, Look, Work
from suffice.errors import InputError
from suffice.serve.processes import wire
from suffice.serve.processes.hosted import Opened
from suffice.serve.run import serve
from suffice.serve.settings import Settings

TOKEN = 1000  # of every answer
VOCABULARY = 49152
CONTEXT = 8192


class Instant:
    """An engine that gives all tokens of a request, one by one, when it comes.

    With a `pause` a thread gives everybody's next token, and waits as long before the next.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._given = 0
        self._left: list[tuple[Work, Callable[[Delta], None], int]] = []
        if pause:
            threading.Thread(target=self._run, daemon=True).start()

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None:
        count = work.params.max_tokens or 1
        if self._pause:
            self._left.append((work, on_delta, count))
            return
        for left in range(count, 0, -1):
            self._give(work, on_delta, left)

    def _give(self, work: Work, on_delta: Callable[[Delta], None], left: int) -> None:
        count = work.params.max_tokens or 1
        final = Final(len(work.prompt), 0, count) if left == 1 else None
        reason = "length" if left == 1 else None
        self._given += 1
        on_delta(Delta(work.id, 0, " word", (TOKEN,), None, reason, None, final))

    def _run(self) -> None:
        while True:
            time.sleep(self._pause)
            now, self._left = self._left, []
            for work, on_delta, left in now:
                self._give(work, on_delta, left)
                if left > 1:
                    self._left.append((work, on_delta, left - 1))

    def cancel(self, id: str) -> bool:
        return False

    def stats(self) -> EngineStats:
        return EngineStats(generated_tokens=self._given)

    def step_tokens(self) -> list[int]:
        return []

    def look(self) -> Look:
        return Look(self.stats(), [[0]], [[0]], [[0]])

    def drain(self) -> None: ...

    def close(self) -> None: ...


class Paced(Instant):
    """An engine that gives each request's tokens at times of its own: the first `first` seconds
    after it came, each other one `pause` seconds after the one before."""

    def __init__(self, pause: float, first: float) -> None:
        super().__init__(0.0)
        self._step, self._first = pause, first
        self._due: list[tuple[float, int, Work, Callable[[Delta], None], int]] = []
        self._news = threading.Condition()
        self._count = 0
        threading.Thread(target=self._keep_time, daemon=True).start()

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None:
        due = time.monotonic() + self._first
        with self._news:
            self._count += 1
            heapq.heappush(
                self._due, (due, self._count, work, on_delta, work.params.max_tokens or 1)
            )
            self._news.notify()

    def _keep_time(self) -> None:
        while True:
            with self._news:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._news.wait(wait)
                    continue
                due, number, work, on_delta, left = heapq.heappop(self._due)
                if left > 1:
                    after = (due + self._step, number, work, on_delta, left - 1)
                    heapq.heappush(self._due, after)
            self._give(work, on_delta, left)


def _no_grammar(text: str) -> Any:
    raise InputError("this engine follows no grammar")


def opened(
    options: Mapping[str, Any], limits: Mapping[str, Any], memory: int | None = None
) -> Opened:
    """Make the engine, as `Settings.engine` names it."""
    pause, first = float(options.get("pause", 0)), float(options.get("first", 0))
    engine = Paced(pause, first) if first else Instant(pause)
    return Opened(engine, wire.Facts(CONTEXT, VOCABULARY, 16), _no_grammar)


def main(arguments: list[str]) -> int:
    model, port, pause, first, thinking = (*arguments, "0", "0", "auto")[:5]
    settings = Settings(
        model=model,
        options={"model": model, "pause": float(pause), "first": float(first)},
        port=int(port),
        max_queue=4096,
        page=False,
        access_log=False,
        engine="benchmarks.serve.engines.instant:opened",
        reasoning_parser=thinking,
    )
    return serve([settings])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
