"""Measure suffice's server, vLLM's and llama.cpp's in turn, on the same model.

    python -m benchmarks.serve.speed                       everything (an hour once installed)
    python -m benchmarks.serve.speed --install             install the other servers and stop
    python -m benchmarks.serve.speed --cases long-prompt   one case; the other results stay
    python -m benchmarks.serve.speed --servers default     these servers alone
    python -m benchmarks.serve.speed --quick               a trial run of tiny sizes, suffice alone

The client is that of `suffice bench serve`. In every round each server is measured once, while the
others are stopped, since a machine's speed drifts; a first round does not count. Results, with
every round, go to benchmarks/serve/results/speed.json and speed.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import record, script
from benchmarks.peers import install as peers
from benchmarks.peers.client import EngineError, Worker
from benchmarks.peers.install import BUILD, InstallError
from benchmarks.serve import bars, cases, install
from benchmarks.serve.cases import Figures, Round, Sizes
from benchmarks.serve.servers import KINDS, LOG, Place, Server, close_all
from suffice import pull
from suffice.eval import serving_load

MODEL = "smollm2-135m"
QUICK = record.BUILD / "serve-quick"
GENERATE = "generate"
_ALL = ("default", "int8", "bf16", "llama", "vllm")
_SAME = ("bf16", "int8", "vllm")  # weights of the same precision, and int8 ones
_TUNED = ("default", "int8", "llama", "llama-tuned", "vllm", "vllm-tuned")
CASES: dict[str, tuple[Callable[[Round], Awaitable[Figures]], tuple[str, ...]]] = {
    "streams-1": (cases.streams(1), _ALL),
    "streams-8": (cases.streams(8), _ALL),
    "streams-16": (cases.streams(16), _ALL),
    "first-token": (cases.first_token, _TUNED),
    "same-8": (cases.streams(8), _SAME),
    "same-16": (cases.streams(16), _SAME),
    "same-first": (cases.first_token, _SAME),
    "long-prompt": (cases.long_prompt, _TUNED),
    "behind-long": (cases.behind_long, ("default",)),
    "shared-prefix": (cases.shared_prefix, ("default",)),
    "second-turn": (cases.second_turn, ("default", "llama", "vllm")),
    "generate": (cases.streams(8), ("default", GENERATE)),
    "schema": (cases.schema, ("default",)),
    "deep": (cases.deep, ("deep", "certified")),
}


class Fleet:
    """The servers under way; each is started when it is first needed, and stopped between turns."""

    def __init__(self, place: Place, jobs: int) -> None:
        self.errors: dict[str, str] = {}
        self._place, self._jobs = place, jobs
        self._servers: dict[str, Server] = {}
        self._worker: Worker | None = None

    def measure(self, name: str, case: str, sizes: Sizes, number: int) -> Figures | None:
        """Return a server's figures of a round; None if it cannot be started."""
        if name in self.errors:
            return None
        try:
            if name == GENERATE:
                return self._generate(sizes, number)
            server = self._server(name)
        except (InstallError, EngineError) as error:
            self.errors[name] = str(error)
            return None
        server.resume()
        try:
            return asyncio.run(_awaited(CASES[case][0], Round(server, sizes, number)))
        finally:
            server.pause()

    def keep(self, names: set[str]) -> None:
        """End the servers that nobody needs any more."""
        for name in [name for name in self._servers if name not in names]:
            self._servers.pop(name).close()

    def close(self) -> None:
        """End all."""
        close_all(self._servers)
        if self._worker is not None:
            self._worker.close()

    def _server(self, name: str) -> Server:
        if name not in self._servers:
            install.server(name, self._jobs)
            print(f"starting {name}", file=sys.stderr, flush=True)
            self._servers[name] = Server(name, self._place)
        return self._servers[name]

    def _generate(self, sizes: Sizes, number: int) -> Figures:
        if self._worker is None:
            options = {"gguf": str(self._place.gguf), "threads": self._place.threads}
            log = LOG / "serve-generate.log"
            module = "benchmarks.serve.engines.generate"
            self._worker = Worker(Path(sys.executable), module, options, dict(os.environ), log)
        load = serving_load.Load(requests=8, input_len=sizes.prompt, seed=1000 * number)
        prompts = [talk.turns[0] for talk in serving_load.conversations(load)]
        answer: Figures = self._worker.ask("run", prompts=prompts, count=sizes.output)
        return answer


async def _awaited(case: Callable[[Round], Awaitable[Figures]], turn: Round) -> Figures:
    return await case(turn)


def turn(
    fleet: Fleet, names: list[str], case: str, sizes: Sizes, number: int
) -> dict[str, Figures]:
    """Measure each server once; the first one changes from round to round."""
    shift = number % len(names)
    found = {}
    for name in names[shift:] + names[:shift]:
        figures = fleet.measure(name, case, sizes, number)
        if figures is not None:
            found[name] = figures
    return {name: found[name] for name in names if name in found}


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure cases, writing results after each."""
    gguf = pull.pull(MODEL)
    folder_model = BUILD / "model"
    if any(name.startswith("vllm") for name in options.servers):
        peers.export(gguf, folder_model)
    fleet = Fleet(Place(gguf, folder_model, options.threads), options.jobs)
    sizes = cases.QUICK if options.quick else Sizes()
    data = known(folder)
    needed = {case: [n for n in CASES[case][1] if n in options.servers] for case in options.cases}
    try:
        for at, (case, names) in enumerate(needed.items()):
            fleet.keep({name for later in list(needed.values())[at:] for name in later})
            if not names:
                continue
            turns = []
            for number in range(options.rounds + 1):
                print(f"{case}, round {number} of {options.rounds}", file=sys.stderr, flush=True)
                found = turn(fleet, names, case, sizes, number)
                if number:
                    turns.append(found)
            before = data["cases"].get(case, []) if options.add else []
            data["cases"][case] = before + turns
            data["errors"] = {
                name: why for name, why in data["errors"].items() if name not in names
            } | fleet.errors
            write(folder, options, data)
    finally:
        fleet.close()
    return data


def known(folder: Path) -> dict[str, Any]:
    """Return an earlier run's cases and errors."""
    path = folder / "speed.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"cases": found.get("cases", {}), "errors": found.get("errors", {})}


def write(folder: Path, options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write the results so far."""
    servers = {
        name: {"label": kind.label, "flags": list(kind.flags)}
        | ({"error": found["errors"][name]} if name in found["errors"] else {})
        for name, kind in KINDS.items()
    }
    data = record.facts() | {
        "model": f"{MODEL} (Q4_1 file; vLLM: its weights in bfloat16)",
        "threads": options.threads,
        "quick": options.quick,
        "servers": servers,
        "errors": found["errors"],
        "cases": {case: found["cases"][case] for case in CASES if case in found["cases"]},
    }
    record.write(folder, "speed", data, bars.report(data))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    servers = [*KINDS, GENERATE]
    parser.add_argument("--servers", nargs="+", choices=servers, metavar="SERVER")
    parser.add_argument("--add", action="store_true", help="keep earlier rounds of the cases")
    parser.add_argument("--install", action="store_true", help="install the servers and stop")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    found = script.with_peers(parser)
    if found.servers is None:
        peers = ("llama", "vllm") if found.quick else ()
        found.servers = (
            [name for name in servers if not name.startswith(peers)] if peers else servers
        )
    return found


def main() -> int:
    options = arguments()
    folder = options.output or (QUICK if options.quick else record.results(__file__))
    if options.install:
        for name in KINDS:
            try:
                install.server(name, options.jobs)
            except InstallError as error:
                print(error)
        return 0
    data = run(options, folder)
    print(bars.bars(data["cases"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
