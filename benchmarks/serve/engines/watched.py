"""A server whose engine notes when requests come, get tokens and end, and in which step.

python -m benchmarks.serve.engines.watched MODEL PORT LOG SAMPLES
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from suffice.engine.work import Delta, EngineStats, Look, Work
from suffice.serve.processes import model
from suffice.serve.processes.hosted import Engine, Opened
from suffice.serve.settings import Settings


class Watched:
    """An engine that writes a line for each event: time, step, id, event."""

    def __init__(self, engine: Engine, log: Path) -> None:
        self._engine = engine
        self._log = log.open("a", buffering=1)

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None:
        def noted(delta: Delta) -> None:
            self._note(work.id, "token" if delta.final is None else "end")
            on_delta(delta)

        self._note(work.id, "submit")
        self._engine.submit(work, noted)

    def cancel(self, id: str) -> bool:
        return self._engine.cancel(id)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def step_tokens(self) -> list[int]:
        return self._engine.step_tokens()

    def look(self) -> Look:
        return self._engine.look()

    def drain(self) -> None:
        self._engine.drain()

    def close(self) -> None:
        self._engine.close()

    def _note(self, ident: str, event: str) -> None:
        self._log.write(f"{time.monotonic()} {self._engine.stats().steps} {ident} {event}\n")


def opened(
    options: Mapping[str, Any], limits: Mapping[str, Any], memory: int | None = None
) -> Opened:
    """Load a model, as `Settings.engine` names it."""
    own = dict(options)
    log = Path(own.pop("log"))
    found = model.opened(own, limits, memory)
    return Opened(Watched(found.engine, log), found.facts, found.compiled)


def settings(folder: str, port: int, log: str, samples: int) -> Settings:
    """Return a server's settings; it keeps no prefixes, so that all bytes are requests'."""
    return Settings(
        model=folder,
        options={"model": folder, "log": log, "max_num_seqs": samples},
        limits={"prefix_bytes": 0},
        port=port,
        max_num_seqs=samples,
        access_log=False,
        engine="benchmarks.serve.engines.watched:opened",
    )


if __name__ == "__main__":
    from suffice.serve.run import serve

    sys.exit(serve([settings(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))]))
