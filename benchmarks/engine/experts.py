"""Time a mixture of experts against the bytes that it must read, and against llama.cpp.

    python -m benchmarks.engine.experts                  8 layers of Qwen3-30B-A3B's shape (minutes)
    python -m benchmarks.engine.experts --types Q4_0     one type of file; other results stay
    python -m benchmarks.engine.experts --layers 30      more of the model
    python -m benchmarks.engine.experts --quick          a tiny shape, to see that it runs

The files have random codes. Both engines run the same file with the same tokens, and steps once
untimed. In every round a stream, a batch of 8 and a prompt are measured one after the other, ours
and llama.cpp's in turn; an engine that waits is stopped. The streaming read, of memory in huge
pages as that of the weights, is measured before and after our stream: on some machines it changes
within seconds, and rounds in which it did are left out of the figure that divides by it. What a
step must read are the matrices of all rows, the distinct experts that its rows chose, as the native
step counts them, and keys and values. A batch's prediction is the time of a stream times the ratio
of the bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import record, script, shaped_experts
from benchmarks.harness.shaped_experts import QWEN3_30B_A3B, TINY, TYPES, ExpertShape
from benchmarks.harness.tables import markdown
from benchmarks.peers import install
from benchmarks.peers.client import EngineError, Worker, engine_module
from benchmarks.peers.install import BUILD, PACKAGES, InstallError
from benchmarks.peers.speed import Case
from suffice.errors import InputError

NAME = "experts"
FILES = record.BUILD / "shaped"
ROWS = 1024  # context of either engine
LAYERS = 8
BATCH = 8
OURS = {"dtype": "auto", "whole": False, "rows": ROWS}
SETTINGS: dict[str, dict[str, Any]] = {
    "the file": {"quantization": None, "kv": "bfloat16"},
    "8-bit inputs and cache": {"quantization": "file:act_bits=8", "kv": "int8"},
}
# What was asked: the figure, and whether it is the least or the most.
ASKED: dict[str, tuple[str, float, bool]] = {
    "roof": ("decode over the streaming read of what it must read", 0.75, True),
    "decode": ("decode over llama.cpp's", 1.4, True),
    "prompt": ("a prompt of 512 over llama.cpp's", 2.0, True),
    "batch": (f"a batch of {BATCH} over the time that its bytes predict", 1.2, False),
}
STEADY = 0.9  # of the faster streaming read, the least that the slower one of a round may be
Turn = dict[str, Any]


def cases(quick: bool) -> dict[str, Case]:
    """Return the cases; a quick run has the same in tiny sizes."""
    return {
        "decode": Case(depth=8, count=4 if quick else 128),
        "batch": Case(depth=8, batch=BATCH, count=4 if quick else 32),
        "prompt": Case(prompt=16 if quick else 512),
    }


def turn(ours: Worker, peer: Worker | None, wanted: dict[str, Case], seed: int) -> Turn:
    """Return the answers of one round, by case."""
    vocabulary = ours.about["vocabulary"]
    found: Turn = {}

    def steps(worker: Worker, case: Case) -> dict[str, Any]:
        # Steps after a pause may take twice as long, for a tenth of a second or more.
        if not case.prompt:
            case.run(worker, vocabulary, seed)
        return case.run(worker, vocabulary, seed)

    for name, case in wanted.items():
        before = ours.ask("roof") if name == "decode" else None
        found[name] = {"ours": steps(ours, case)}
        if before:
            found[name]["reads"] = {"before": before, "after": ours.ask("roof")}
        if peer is not None:
            found[name]["peer"] = steps(peer, case)
    return found


def step_bytes(answer: dict[str, Any]) -> float:
    """Return the bytes that a step reads."""
    return float((answer["weight_bytes"] + answer["kv_bytes"]) / answer["steps"])


def reads(one: Turn) -> list[float]:
    """Return the streaming reads before and after the stream of a round, in bytes per second."""
    return [float(each["bytes_per_second"]) for each in one["decode"]["reads"].values()]


def steady(turns: list[Turn]) -> list[Turn]:
    """Return the rounds in which the streaming read did not change; all if there is none."""
    found = [each for each in turns if min(reads(each)) >= STEADY * max(reads(each))]
    return found or turns


def figures(one: Turn) -> dict[str, float]:
    """Return the figures of a round."""
    decode, batch = one["decode"]["ours"], one["batch"]["ours"]
    steps = decode["steps"] / decode["seconds"]
    bytes_over = step_bytes(batch) / step_bytes(decode)
    found = {
        "roof": step_bytes(decode) * steps / statistics.mean(reads(one)),
        "batch": batch["seconds"] / batch["steps"] * steps / bytes_over,
        "bytes_over": bytes_over,
    }
    for name, each in one.items():
        if "peer" in each:
            over = each["ours"]["tokens_per_second"] / each["peer"]["tokens_per_second"]
            found["batch_over" if name == "batch" else name] = over
    return found


def summary(turns: list[Turn]) -> dict[str, Any]:
    """Return the medians of the rounds."""
    rounds = [figures(each) for each in turns]
    found: dict[str, Any] = {
        name: statistics.median(each[name] for each in rounds) for name in rounds[0]
    }
    counted = steady(turns)
    shares = [figures(each)["roof"] for each in counted]
    found |= {
        "roof": statistics.median(shares),
        "least_roof": min(shares),
        "most_roof": max(shares),
    }
    found["counted"] = len(counted)
    found["bytes"] = step_bytes(turns[0]["decode"]["ours"])
    found["read"] = statistics.median(statistics.mean(reads(each)) for each in counted)
    for who in ("ours", "peer"):
        for name in turns[0]:
            rates = [each[name][who]["tokens_per_second"] for each in turns if who in each[name]]
            if rates:
                found[f"{name}_{who}"] = statistics.median(rates)
    return found


def measure(path: Path, setting: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a file in a setting, and of each round.

    Raises:
        InputError: An engine cannot run it.
    """
    given = {"gguf": str(path), "threads": options.threads}
    package = PACKAGES["llama-cpp-python"]
    workers: list[Worker] = []

    def start(name: str, python: Path, own: dict[str, Any], environment: dict[str, str]) -> Worker:
        log = BUILD / "log" / f"{NAME}-{name}.log"
        workers.append(Worker(python, engine_module(name), given | own, environment, log))
        return workers[-1]

    try:
        own = OURS | SETTINGS[setting] | ({"roof_bytes": 16 << 20} if options.quick else {})
        ours = start("suffice", Path(sys.executable), own, dict(os.environ))
        peer = None
        if not options.alone:
            install.install(package, options.jobs)
            llama = {"rows": ROWS, "flash": "auto"}
            environment = package.environment(options.threads)
            peer = start("llamacpp", package.python, llama, environment)
        wanted = cases(options.quick)
        turns = [turn(ours, peer, wanted, number) for number in range(options.rounds + 1)][1:]
        about = {"ours": ours.about} | ({} if peer is None else {"peer": peer.about})
    except (InstallError, EngineError) as error:
        raise InputError(str(error)) from None
    finally:
        for worker in workers:
            worker.close()
    return about | {"summary": summary(turns), "rounds": turns}


def reached(name: str, value: float) -> str:
    """Say whether a figure is what was asked."""
    _, limit, least = ASKED[name]
    return "yes" if (value >= limit if least else value <= limit) else "**no**"


def table(data: dict[str, Any]) -> str:
    """Return the results as text and tables."""
    found = {name: each["summary"] for name, each in data["files"].items()}
    asked = [
        [
            what,
            kind,
            f"at {'least' if least else 'most'} {limit}",
            own[name],
            reached(name, own[name]),
        ]
        for name, (what, limit, least) in ASKED.items()
        for kind, own in found.items()
        if name in own
    ]
    lines = [
        [
            kind,
            own["bytes"] / 1e6,
            own["read"] / 1e9,
            f"{own['roof']:.2f} ({own['least_roof']:.2f} to {own['most_roof']:.2f}; "
            f"{own['counted']})",
            *(_pair(own, name) for name in ("decode", "batch", "prompt")),
            own["bytes_over"],
        ]
        for kind, own in found.items()
    ]
    shape = data["shape"]
    about = (
        f"{shape['layers']} of {data['whole_layers']} layers in the shape of {shape['name']}: "
        f"{shape['chosen']} of {shape['experts']} experts, random codes and routers, a vocabulary "
        f"of {shape['vocabulary']}. {data['threads']} threads, {data['machine']['isa']}, medians "
        f"of {data['rounds']} rounds; of the streaming read, of as many rounds as are named, in "
        "which it did not change. Tokens per second of suffice / of llama.cpp, both with their "
        "defaults on the same file. The upper table has medians of the rounds' ratios, which the "
        "ratios of medians in the lower one may differ from."
    )
    head = ["file", "MB a step", "streaming read, GB/s", "decode, of it (rounds)"]
    head += ["decode", f"batch of {BATCH}", "prompt of 512", "bytes of the batch over a stream's"]
    quick = ["**A quick run of a tiny shape: no figure means anything.**"] * data["quick"]
    return "\n\n".join(
        [
            "## A mixture of experts",
            *quick,
            markdown(["what", "file", "asked", "measured", "reached"], asked),
            markdown(head, lines),
            about,
        ]
    )


def _pair(own: dict[str, float], name: str) -> str:
    ours, peer = own[f"{name}_ours"], own.get(f"{name}_peer")
    return f"{ours:.1f}" + ("" if peer is None else f" / {peer:.1f} ({ours / peer:.2f}x)")


def known(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the files' figures of an earlier run of the same shape; none if there was none."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    same = all(found.get(name) == facts[name] for name in ("shape", "threads", "rounds"))
    return found["files"] if same else {}


def run(options: argparse.Namespace, wanted: Callable[[str], Path], shape: ExpertShape) -> str:
    """Measure each file in each setting, write the results, and return their tables.

    Those of other files and settings stay.
    """
    data = record.facts() | {
        "shape": vars(shape),
        "whole_layers": QWEN3_30B_A3B.layers,
        "threads": options.threads,
        "rounds": options.rounds,
        "quick": options.quick,
    }
    usual = BUILD.parent / "experts-quick" if options.quick else record.results(__file__)
    folder, name = options.output or usual, record.name_of(NAME)
    files = known(folder / f"{name}.json", data)
    for kind in options.types:
        for setting in options.settings:
            files[f"{kind}, {setting}"] = measure(wanted(kind), setting, options)
            record.write(folder, name, data | {"files": files}, table(data | {"files": files}))
    return table(data | {"files": files})


def main() -> int:
    """Measure, print the tables and store them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, results in build/")
    options = script.with_peers(parser)
    if not 1 <= options.layers <= QWEN3_30B_A3B.layers:
        parser.error(f"--layers must be from 1 to {QWEN3_30B_A3B.layers}")
    shape = TINY if options.quick else QWEN3_30B_A3B.with_layers(options.layers)

    def file_of(kind: str) -> Path:
        path = FILES / f"{shape.name}-{shape.layers}-{kind}.gguf"
        return path if path.exists() else shaped_experts.write(path, shape, kind)

    return script.printed(NAME, lambda: run(options, file_of, shape))


if __name__ == "__main__":
    sys.exit(main())
