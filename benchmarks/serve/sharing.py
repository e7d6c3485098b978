"""What a second engine of a node costs: its memory, and the seconds until it takes requests.

    python -m benchmarks.serve.sharing            (about 2 minutes)
    python -m benchmarks.serve.sharing --quick

Engines are started as the server does, in processes of their own with weights that they share. The
first packs them; the others attach to what it packed. An engine's memory is its proportional share
(PSS): what two engines share counts half for each. Results go to
benchmarks/serve/results/sharing.json and sharing.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.harness import script
from benchmarks.harness.tables import markdown
from suffice import native, pull
from suffice.serve.processes import wire
from suffice.serve.processes.life import Life, Weights, launched
from suffice.serve.settings import ENGINE

ROUNDS = 5
MEMORY_BAR, START_BAR = 150e6, 1.0  # bytes beyond the weights, seconds
SETTINGS = {
    "smollm2-135m": {"model": "smollm2-135m"},
    "smollm2-135m, bf16": {"model": "smollm2-135m", "quantization": "none"},
    "gemma3-270m": {"model": "gemma3-270m"},
}


class Engines:
    """Engines of one setting, whose weights lie in memory that they share."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options, self._weights = options, Weights()
        self._facts: wire.Facts | None = None
        self._failed: Exception | None = None
        self.lives: list[Life] = []

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        assert self._facts is not None, "an engine has been started"
        return self._facts.weight_bytes

    async def start(self) -> float:
        """Start an engine; return the seconds from its process's start until it takes requests."""
        began = time.perf_counter()
        start = wire.Start(ENGINE, {**self._options, "threads": 1})
        life = await launched(self._take, start, self._weights)
        self.lives.append(life)
        await self._weights.load(life)
        if not await life.settled():
            raise self._failed or RuntimeError("an engine ended before it was ready")
        return time.perf_counter() - began

    def memory(self) -> int:
        """Return the bytes of all engines together."""
        return sum(pss(life.process.pid) for life in self.lives)

    async def close(self) -> None:
        """End all engines."""
        for life in self.lives:
            await life.end()
        self._weights.close()

    def _take(self, life: Life, message: wire.Up) -> None:
        if isinstance(message, wire.Facts):
            self._facts = message
            life.welcomed.set_result(None)
        elif isinstance(message, wire.Failed):
            self._failed = message.error()


@contextlib.asynccontextmanager
async def engines(options: dict[str, Any]) -> AsyncIterator[Engines]:
    """Have engines that end at the end."""
    found = Engines(options)
    try:
        yield found
    finally:
        await found.close()


def pss(pid: int) -> int:
    """Return the memory of a process in bytes: what it shares counts in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


async def measured(options: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of the first and the second engine's start, and the bytes of both."""
    async with engines(options) as found:
        first = await found.start()
        one = found.memory()
        second = await found.start()
        both = found.memory()
        weights = found.weight_bytes
    return {"first": first, "second": second, "one": one, "both": both, "weights": weights}


def run(settings: dict[str, dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Measure each setting some times; return the medians and the slowest start."""
    found = {}
    for name, options in settings.items():
        pull.resolve(options["model"])  # downloads it if it is not there
        asyncio.run(measured(options))  # files come into the system's cache
        every = [asyncio.run(measured(options)) for _ in range(rounds)]
        found[name] = {key: statistics.median(each[key] for each in every) for key in every[0]}
        found[name]["slowest"] = max(each["second"] for each in every)
    return found


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    rows: list[list[object]] = []
    for name, found in data["found"].items():
        beyond = found["both"] - found["one"]
        start = f"{found['second']:.2f} (slowest {found['slowest']:.2f})"
        sizes = [f"{found[key] / 1e6:.0f}" for key in ("weights", "one", "both")]
        rows.append([name, *sizes, f"{beyond / 1e6:.0f}", f"{found['first']:.2f}", start])
    head = ["setting", "weights, MB", "one engine", "two engines", "the second adds"]
    head += ["first start, s", "second start, s"]
    asked = f"Asked: the second adds at most {MEMORY_BAR / 1e6:.0f} MB and starts in {START_BAR} s."
    return f"## A second engine\n\n{markdown(head, rows)}\n\nMedians. {asked}"


def main() -> int:
    options = script.quick_or_whole(__doc__)
    settings = dict(list(SETTINGS.items())[:1]) if options.quick else SETTINGS
    found = run(settings, 1 if options.quick else ROUNDS)
    script.store(options, __file__, {"found": found, "cores": native.cores()}, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
