"""Time plain decoding of the engine by growth policy: what growing costs, and what steps cost.

    python -m benchmarks.growth.engine              SmolLM2, Gemma 3, layers of LLaMA-2-7B's shape
    ... --models gemma3-270m                        these alone; rows of others stay as stored
    python -m benchmarks.growth.engine --quick      tiny sizes, to see that it runs

N tokens are decoded for each of B requests, from empty caches. The time is the sum of N steps and
of all growths. Steps run at some depths, on caches that have the policy's capacity, and policies
take turns; their mean stands for all. A growth is a call that gives a full cache more rows, and the
time until the system has mapped them all, so that no step pays for new memory. Policies that grow
often are timed at some of their growths. Keys and values are random: time does not depend on them.

The layers of LLaMA-2-7B's shape have random codes of Q4_0; a step of the whole model takes eight
times as long, and so does a growth. OPT-6.7B's layers have the same heads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.growth.block import spread
from benchmarks.harness import record, shaped_file
from benchmarks.harness.tables import markdown
from suffice import LLM, pull
from suffice.cache import GROWTHS, Growth
from suffice.cache.machine import fitted_to_kernel
from suffice.engine.protocol import Rows
from suffice.engine.runner import Runner, Sequence
from suffice_hw.kllm.design import MODELS

POLICIES = ("bmc", "step", "double", "upfront", "iterative")
CHOSEN = POLICIES[0]
LAYERS = 4
QUICK = record.BUILD / "growth-engine-quick"
EVERYTHING = 1 << 62  # bytes to map at once
BARS = {"the best fixed policy": 0.99, "iterative": 1.3, "upfront": 1.1}


@dataclass(frozen=True)
class Case:
    """B requests of a model that reach N tokens."""

    model: str
    batch: int
    rows: int


SHAPED = f"{LAYERS} layers of llama-2-7b"
CASES = (
    Case("smollm2-135m", 1, 2048),
    Case("smollm2-135m", 8, 2048),
    Case("smollm2-135m", 32, 1024),
    Case("smollm2-135m", 1, 8192),
    Case("gemma3-270m", 1, 2048),
    Case("gemma3-270m", 8, 2048),
    Case("gemma3-270m", 32, 1024),
    Case(SHAPED, 1, 2048),
    Case(SHAPED, 8, 2048),
    Case(SHAPED, 1, 4096),
)
TINY = (Case("tiny", 1, 64), Case("tiny", 2, 64))


@dataclass(frozen=True)
class Sampling:
    """How much is timed: depths, rounds of one step each, growths of a policy."""

    depths: int = 6
    steps: int = 7
    growths: int = 6


def main() -> int:
    """Measure, print the table and store it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    models = list(dict.fromkeys(case.model for case in CASES))
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    flags = parser.parse_args()
    folder = QUICK if flags.quick else record.results(__file__)
    asked = [case for case in CASES if case.model in flags.models]
    cases, sampling = (TINY, Sampling(2, 2, 2)) if flags.quick else (asked, Sampling())
    found = [] if flags.quick else kept(folder / "engine.json", flags.models)
    for case in track(cases, "growth", console=Console(stderr=True), transient=True):
        found += measure(case, sampling)
    found.sort(key=lambda row: [case.model for case in (*TINY, *CASES)].index(row["model"]))
    text = f"## Growth in the engine\n\n{table(found)}\n\n{verdicts(found)}\n\n" + (
        "Seconds for N tokens of each request, and the share of them that growing takes. Held: the "
        "mean of the rows that memory is held for, over the mean of the rows in use."
    )
    data = record.facts() | {"sampling": dataclasses.asdict(sampling), "rows": found}
    record.write(folder, "engine", data, text)
    print(text)
    return 0


def kept(path: Path, models: list[str]) -> list[dict[str, Any]]:
    """Return the stored rows of other models than those that are measured."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [row for row in rows if row["model"] not in models]


def model_path(name: str) -> str | Path:
    """Return a model, made if it is of a shape only."""
    shapes = {
        SHAPED: dataclasses.replace(MODELS["llama-2-7b"], layers=LAYERS),
        "tiny": shaped_file.TINY,
    }
    if name not in shapes:
        return pull.resolve(name)
    path = record.BUILD / "shaped" / f"{name.replace(' ', '-')}-Q4_0.gguf"
    return path if path.exists() else shaped_file.write(path, shapes[name], "Q4_0")


def capacities(growth: Growth, rows: int) -> list[int]:
    """Return every capacity of a cache that is filled row by row."""
    seen = [growth.next_capacity(1, 0, rows)]
    while seen[-1] < rows:
        seen.append(growth.next_capacity(seen[-1] + 1, seen[-1], rows))
    return seen


def measure(case: Case, sampling: Sampling) -> list[dict[str, Any]]:
    """Return the figures of each policy."""
    llm = LLM(str(model_path(case.model)), max_model_len=case.rows)
    runner: Runner = llm.runner
    policies = {name: fitted_to_kernel(GROWTHS.build(name)) for name in POLICIES}
    full = filled(runner, case.rows)
    steps = step_seconds(runner, full, policies, case, sampling)
    found = []
    for name, growth in policies.items():
        steps_all = case.rows * statistics.mean(steps[name])
        growing = growth_seconds(full, growth, case, sampling)
        every = capacities(growth, case.rows)
        held = sum(
            capacity * (capacity - before)
            for before, capacity in zip([0, *every], every, strict=False)
        )
        found.append(
            {
                **dataclasses.asdict(case),
                "growth": name,
                "allocations": len(every),
                "r": every[-1] - [0, *every][-2],
                "steps": steps_all,
                "growing": growing,
                "seconds": steps_all + growing,
                "held": held / (case.rows * (case.rows + 1) / 2),
            }
        )
    full.cache.close()
    return found


def filled(runner: Runner, rows: int) -> Sequence:
    """Return a sequence with random keys and values in every row."""
    sequence = runner.open("full", rows)
    cache, random = sequence.cache, np.random.default_rng(0)
    cache.growth = GROWTHS.build("upfront")
    cache.reserve(rows)
    for at in range(0, rows, 256):
        count = min(256, rows - at)
        for layer in range(cache.layers):
            shape = (cache.heads(0), count, cache.size(0))
            cache.append(layer, *random.standard_normal((2, *shape), np.float32))
        cache.advance(count)
    return sequence


def copied(full: Sequence, growth: Growth, rows: int, spare: int) -> Sequence:
    """Return a copy of the first rows, with the capacity that a policy gives `rows + spare`."""
    full.cache.growth = growth
    copy = Sequence("copy", full.cache.fork(rows, spare))
    while not copy.cache.populate(EVERYTHING):
        pass
    return copy


def step_seconds(
    runner: Runner,
    full: Sequence,
    policies: dict[str, Growth],
    case: Case,
    sampling: Sampling,
) -> dict[str, list[float]]:
    """Return the median seconds of a step at each depth; policies take turns."""
    found: dict[str, list[float]] = {name: [] for name in policies}
    for depth in spread(case.rows - 1, sampling.depths):
        times: dict[str, list[float]] = {name: [] for name in policies}
        caches = {
            name: [copied(full, growth, depth, 1) for _ in range(case.batch)]
            for name, growth in policies.items()
        }
        for _ in range(sampling.steps + 1):
            for name, sequences in caches.items():
                began = time.perf_counter()
                runner.run([Rows(sequence, [1]) for sequence in sequences])
                times[name].append(time.perf_counter() - began)
                for sequence in sequences:
                    sequence.cache.rollback()
        for name, sequences in caches.items():
            found[name].append(statistics.median(times[name][1:]))  # the first warms up
            for sequence in sequences:
                sequence.cache.close()
    return found


def growth_seconds(full: Sequence, growth: Growth, case: Case, sampling: Sampling) -> float:
    """Return the seconds of all growths of a case."""
    every = capacities(growth, case.rows)[:-1]  # each of them gets full, and is replaced
    chosen = spread(len(every), sampling.growths)
    times = [growing(full, growth, every[at]) for at in chosen]
    each = statistics.mean(times) if times else 0.0
    return case.batch * (each * len(every) + first_seconds(full, growth))


def growing(full: Sequence, growth: Growth, rows: int) -> float:
    """Return the median seconds of a growth of a cache of `rows` rows, all in use."""
    times = []
    for _ in range(3):
        times.append(reserved(copied(full, growth, rows, 0)))
    return statistics.median(times)


def first_seconds(full: Sequence, growth: Growth) -> float:
    """Return the median seconds of a cache's first allocation."""
    times = []
    for _ in range(3):
        empty = copied(full, growth, 0, 0)
        empty.cache.close()  # its memory is given up; it can be filled again
        times.append(reserved(empty))
    return statistics.median(times)


def reserved(sequence: Sequence) -> float:
    """Return the seconds until a sequence has memory for another row; close it then."""
    began = time.perf_counter()
    sequence.cache.reserve(1)
    sequence.cache.populate(EVERYTHING)
    seconds = time.perf_counter() - began
    sequence.cache.close()
    return seconds


def table(found: list[dict[str, Any]]) -> str:
    """Return the table of all cases and policies."""
    head = ["model", "B", "N", "growth", "r", "allocations", "seconds", "growing", "held"]
    lines = [
        [
            each["model"],
            each["batch"],
            each["rows"],
            each["growth"],
            each["r"],
            each["allocations"],
            f"{each['seconds']:.1f}",
            f"{each['growing'] / each['seconds']:.1%}",
            f"{each['held']:.2f}",
        ]
        for each in found
    ]
    return markdown(head, lines)


def verdicts(found: list[dict[str, Any]]) -> str:
    """Return what the chosen policy reaches over the others, as geometric means over the cases."""
    cases: dict[tuple[Any, ...], dict[str, float]] = {}
    for each in found:
        key = each["model"], each["batch"], each["rows"]
        cases.setdefault(key, {})[each["growth"]] = each["seconds"]
    over: dict[str, list[float]] = {name: [] for name in BARS}
    for seconds in cases.values():
        fixed = [value for name, value in seconds.items() if name != CHOSEN]
        others = {"the best fixed policy": min(fixed), **seconds}
        for name, ratios in over.items():
            ratios.append(others[name] / seconds[CHOSEN])
    lines = [
        [f"speed of {CHOSEN} over {name}", f"at least {BARS[name]}", f"{mean:.3f}",
         "yes" if mean >= BARS[name] else "**no**"]
        for name, ratios in over.items()
        for mean in [math.exp(statistics.mean(map(math.log, ratios)))]
    ]  # fmt: skip
    return markdown(["geometric mean over the cases", "asked", "measured", "reached"], lines)


if __name__ == "__main__":
    sys.exit(main())
