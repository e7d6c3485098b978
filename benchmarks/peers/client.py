"""The client of worker.py: starts an engine's process and sends it the cases to time.

Engines that are not being timed are stopped (SIGSTOP), so that their spinning threads take no time
from the one that is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers.install import ROOT, last_line

TIMEOUT = 7200.0  # seconds; a compiler may run before the first answer, or a long prompt


def engine_module(name: str) -> str:
    """Return the module of an engine's runner, such as `vllm`."""
    return f"benchmarks.peers.engines.{name}"


def with_root(environment: dict[str, str]) -> str:
    """Return PYTHONPATH with the repository's root, for an engine's process to find its module."""
    return os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))


class EngineError(Exception):
    """An engine did not answer; the message is its last line."""


class Worker:
    """A runner's process.

    Raises:
        EngineError: The process ended before it was ready.
    """

    def __init__(
        self,
        python: Path,
        module: str,
        options: dict[str, Any],
        environment: dict[str, str],
        log: Path,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", module, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment | {"PYTHONPATH": with_root(environment)},
                cwd=log.parent,
                start_new_session=True,
            )
        try:
            self.about = self._answer()
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Send a request to the engine and return its answer.

        Raises:
            EngineError: The engine ended, or took longer than `TIMEOUT`.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # reported below: there is no answer
            self._process.stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End the process and its children."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise EngineError(self._end() if ready else f"no answer in {TIMEOUT:.0f} s")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> str:
        """Return why the process has ended: the signal, or else its last line."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(10)
            if status < 0:
                return f"ended by {signal.Signals(-status).name}"
        return last_line(self._log)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
