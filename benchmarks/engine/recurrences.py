"""Measure how near to the peak of products the recurrences of prompts run.

    python -m benchmarks.engine.recurrences            1 minute
    python -m benchmarks.engine.recurrences --quick    a trial run, results in build/

Files of a few layers have the shapes of models whose layers keep states. While a thread computes
recurrences of a prompt it also convolves, finds decays and normalizes keys; only the recurrence's
multiply-adds are counted. The peak is that of multiply-adds of float32 in the first cache, measured
in each round.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.engine.runs import Plan, Script
from benchmarks.engine.sampling import greedy
from benchmarks.harness import record, shaped_models
from benchmarks.harness.shaped_states import MODELS, Hybrid
from benchmarks.harness.tables import markdown
from suffice import LLM, native

FILES = record.BUILD / "shaped"
TOKENS, LAYERS = 512, 4
ASKED = 0.5  # of the peak
# Multiply-adds of an entry: its decay, what a row adds, the output, and the delta rule's sums.
EACH = {"qwen35": 4, "granitehybrid": 3}
SETTINGS = tuple(name for name, model in MODELS.items() if model.architecture in EACH)


def short(name: str) -> Hybrid:
    """Return a shape with `LAYERS` layers, the last with attention."""
    whole = MODELS[name]
    return dataclasses.replace(
        whole, name=f"{name}-{LAYERS}", layers=LAYERS, attends=(LAYERS - 1,), vocabulary=1024
    )


def products(shape: Hybrid) -> int:
    """Return the multiply-adds of the recurrences of a prompt."""
    entries = shape.state_heads * shape.state_keys * shape.state_values
    layers = shape.layers - len(shape.attends)
    return TOKENS * layers * entries * EACH[shape.architecture]


def measure(model: Path, setting: str, plan: Plan) -> dict[str, float]:
    """Return the medians of the rounds; the first does not count. `model` is not used."""
    shape = short(setting)
    path = FILES / f"{shape.name}-Q4_K_M.gguf"
    if not path.exists():
        shaped_models.write(path, shape, "Q4_K_M")
    llm = LLM(path, max_num_seqs=1, max_model_len=TOKENS + 8)
    llm.runner.time_parts(True)
    threads, rounds = native.threads(), []
    for number in range(plan.rounds + 1):
        peak = native.product_rate("float32", threads)
        llm.runner.take_part_seconds()
        prompt = [(7919 * at + number) % 1000 for at in range(TOKENS)]
        llm.generate([prompt], greedy(0, 0), use_tqdm=False)
        spent = llm.runner.take_part_seconds()
        own = spent["recurrences"]
        rate = products(shape) / (own / threads)
        of_time = own / sum(spent.values())
        rounds.append({"rate": rate, "peak": peak, "of_peak": rate / peak, "of_time": of_time})
    return {name: statistics.median(each[name] for each in rounds[1:]) for name in rounds[0]}


def table(data: dict[str, Any]) -> str:
    """Return the results as text and a table."""
    lines = [
        [
            MODELS[name].title,
            "delta rule" if EACH[MODELS[name].architecture] == 4 else "Mamba-2",
            f"{each['rate'] / 1e9:.1f}",
            f"{each['peak'] / 1e9:.1f}",
            f"{each['of_peak']:.2f}",
            ASKED,
            "yes" if each["of_peak"] >= ASKED else "**no**",
            f"{each['of_time']:.3f}",
        ]
        for name, each in data["settings"].items()
    ]
    head = ["layers of", "kind", "G multiply-adds/s", "peak", "of the peak", "at least", "reached"]
    head.append("of the threads' time")
    note = (
        f"Medians of {data['plan']['rounds']} prompts of {TOKENS} tokens, {LAYERS} layers, the "
        f"last with attention; {data['threads']} threads, {data['machine']['isa']}. The time "
        "includes convolutions, decays and the norms of keys; the multiply-adds are the "
        "recurrence's alone."
    )
    return "\n\n".join(["## Recurrences of prompts", markdown(head, lines), note])


SCRIPT = Script(
    "recurrences",
    __doc__,
    SETTINGS,
    Plan(rounds=5, steps=1),
    measure,
    table,
    record.results(__file__),
    {},
)


if __name__ == "__main__":
    sys.exit(SCRIPT.main())
