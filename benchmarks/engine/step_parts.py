"""Measure by name what the steps of a batch spend their time on.

    python -m benchmarks.engine.step_parts                   2 minutes
    python -m benchmarks.engine.step_parts --settings int8   one kind of weights
    python -m benchmarks.engine.step_parts --quick           a trial run of a tiny model

A batch is generated twice: with one new token each, and with `--steps` more. The difference is that
of the decode steps. Inside a step every thread notes the part it is in; what is left of the wall
time lies between steps: drawing tokens, text, scheduling, Python.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.engine.runs import Plan, Script
from benchmarks.engine.sampling import drawn, greedy, prompts
from benchmarks.harness import record
from benchmarks.harness.tables import markdown
from suffice import LLM, native
from suffice.sampling_params import SamplingParams

SETTINGS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bfloat16", "quantization": "none", "kv_cache_dtype": "bfloat16"},
    "int8": {"quantization": "int8", "kv_cache_dtype": "int8"},
    "int8, 8-bit inputs": {"quantization": "int8:act_bits=8", "kv_cache_dtype": "int8"},
    "the file": {},
}
COUNTS = (1, 8, 32)
DRAWN = {"greedy": greedy, "drawn": drawn}
ASKED = 0.1  # of a batch of 32, at most this share is neither products nor attention
BETWEEN = "between steps"
# What the core calls the parts of a step, in the order of the table.
PARTS = ("products", "attention", "inputs", "norms", "activations", "heads", "other", "waiting")
MULTIPLIES = ("products", "attention")

Figures = dict[str, float]


def seconds(llm: LLM, batch: list[list[int]], params: SamplingParams) -> Figures:
    """Return the wall time of a batch, and the time of threads by part of its steps."""
    llm.runner.take_part_seconds()
    began = time.perf_counter()
    llm.generate(batch, params, use_tqdm=False)
    wall = time.perf_counter() - began
    return {"wall": wall} | llm.runner.take_part_seconds()


def step(llm: LLM, batch: list[list[int]], kind: str, steps: int, seed: int) -> Figures:
    """Return the seconds of one decode step, and the share of each part in the threads' time."""
    params = DRAWN[kind]
    short, long = (seconds(llm, batch, params(count, seed)) for count in (0, steps))
    spent = {name: (long[name] - short[name]) / steps for name in long}
    threads = spent["wall"] * native.threads()
    shares = {name: spent[name] / threads for name in PARTS}
    return {"seconds": spent["wall"]} | shares | {BETWEEN: 1 - sum(shares.values())}


def measure(model: Path, setting: str, plan: Plan) -> dict[str, Figures]:
    """Return the medians of the rounds, by the size of the batch and the kind of drawing."""
    llm = LLM(model, max_num_seqs=max(COUNTS), **SETTINGS[setting])
    llm.runner.time_parts(True)
    found = {}
    for count in COUNTS:
        batch = prompts(llm, count)
        for kind in DRAWN:
            rounds = [step(llm, batch, kind, plan.steps, seed) for seed in range(plan.rounds + 1)]
            medians = {
                name: statistics.median(each[name] for each in rounds[1:]) for name in rounds[0]
            }
            found[f"{count}, {kind}"] = medians
    return found


def besides(figures: Figures) -> float:
    """Return the share of what is neither products nor attention."""
    return 1 - sum(figures[name] for name in MULTIPLIES)


def reached(figures: Figures) -> str:
    """Say whether that share is as small as asked."""
    return "yes" if besides(figures) <= ASKED else "**no**"


def table(data: dict[str, Any]) -> str:
    """Return the results as text and a table."""
    names = (*PARTS, BETWEEN)
    lines = [
        [
            setting,
            batch,
            f"{1e3 * figures['seconds']:.2f}",
            *(f"{figures[name]:.3f}" for name in names),
            f"{besides(figures):.3f}",
        ]
        for setting, by_batch in data["settings"].items()
        for batch, figures in by_batch.items()
    ]
    asked = [
        [setting, batch, ASKED, f"{besides(figures):.3f}", reached(figures)]
        for setting, by_batch in data["settings"].items()
        for batch, figures in by_batch.items()
        if batch.startswith(f"{max(COUNTS)},")
    ]
    note = (
        f"Shares of the threads' time, medians of {data['plan']['rounds']} rounds of "
        f"{data['plan']['steps']} steps after a short prompt; {data['model']}, {data['threads']} "
        f"threads, {data['machine']['isa']}. inputs: rounding and quantizing what is multiplied; "
        "norms: also sums of the residual stream; heads: rotation, and storing keys and values; "
        "other: embeddings, and planning each layer's attention; waiting: for other threads, but "
        "within attention; between steps: drawing tokens, text, scheduling, Python, and what one "
        "thread does before the others start. The last column is all but products and attention."
    )
    head = ["weights", "batch", "step, ms", *names, "besides"]
    bars = ["weights", "batch", "at most", "besides products and attention", "reached"]
    return "\n\n".join(
        ["## The parts of a step", markdown(bars, asked), markdown(head, lines), note]
    )


SCRIPT = Script(
    "step_parts",
    __doc__,
    SETTINGS,
    Plan(rounds=5, steps=64),
    measure,
    table,
    record.results(__file__),
    {},
)

if __name__ == "__main__":
    sys.exit(SCRIPT.main())
