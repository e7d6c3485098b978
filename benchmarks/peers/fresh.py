"""Measures fresh processes: wall time, time to the first output, peak memory."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.client import EngineError
from benchmarks.peers.install import last_said

Run = dict[str, Any]
TIMED = Path(__file__).with_name("engines") / "timed.py"
BLOCK_BYTES = 1 << 20


def started(command: Sequence[str]) -> Run:
    """Run a command to its end.

    Returns `seconds`, `first_seconds` (to the first byte of output; None without any),
    `peak_bytes` (resident) and `said` (the output). The folder is /, and PYTHONPATH is not passed
    on, so that Python finds only what is installed.

    Raises:
        EngineError: The command cannot be started or fails; the message is its last line.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(TIMED), *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        cwd="/",
        env=environment,
        check=False,
    )
    failed = {"status": done.returncode}
    run: Run = ast.literal_eval(done.stdout) if done.returncode == 0 else failed
    if run.pop("status"):
        raise EngineError(f"{Path(command[0]).name}: {last_said(done.stderr)}")
    return run


def in_turn(
    commands: dict[str, list[str]], rounds: int, before: Callable[[], object]
) -> dict[str, list[Run]]:
    """Run commands one after the other in each round, and `before` ahead of each.

    A first round, which does not count, brings the files of the programs into memory.
    """
    found: dict[str, list[Run]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            before()
            run = started(command)
            if number:
                found[name].append(run)
    return found


def read_seconds(path: Path) -> float:
    """Read a file in blocks of 1 MiB and return how long that took."""
    block = bytearray(BLOCK_BYTES)
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):  # type: ignore[attr-defined]
            pass
    return time.perf_counter() - began
