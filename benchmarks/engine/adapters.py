"""Measure what LoRA adapters cost: decode steps with adapters over the same steps without.

    python -m benchmarks.engine.adapters                    all settings, minutes
    python -m benchmarks.engine.adapters --settings bf16    one of them
    python -m benchmarks.engine.adapters --quick            a trial run of a tiny model

Adapters of rank 16 change all matrices of the layers. One engine has eight of them. Steps of one
stream and of a batch of eight, with nothing, with one adapter and with an adapter for each row,
take turns; ratios are of one round. An adapter's matrices have the model's float type, so the bytes
of a step say how much of a ratio is memory's: `bytes` is that of a step without over that with.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.runs import Plan, Script
from benchmarks.harness import record, shaped_adapter, shaped_file
from benchmarks.harness.tables import markdown
from suffice import LLM
from suffice.engine.protocol import Rows

RANK, BATCH, DEPTH = 16, 8, 8
LAYERS = 4  # of the 7B shape
FILES = record.BUILD / "shaped"


@dataclass(frozen=True)
class Setting:
    """Options of an engine, and the type of a file in the shape of LLaMA-2-7B, if it runs one."""

    options: dict[str, Any]
    shaped: str | None = None


SETTINGS = {
    "bf16": Setting({"quantization": "none:dtype=bfloat16"}),
    "the file": Setting({}),
    "the file, 8-bit inputs and cache": Setting(
        {"quantization": "file:act_bits=8", "kv_cache_dtype": "int8"}
    ),
    "7B layers, Q4_K_M": Setting({}, shaped="Q4_K_M"),
    "7B layers, bf16": Setting({"quantization": "none:dtype=bfloat16"}, shaped="Q4_0"),
}
# The adapters of a step's rows, by case.
CASES: dict[str, list[int]] = {
    "1 off": [-1],
    "1 on": [0],
    "8 off": [-1] * BATCH,
    "8 one": [0] * BATCH,
    "8 on": list(range(BATCH)),
}
OVER = {"1 on": "1 off", "8 one": "8 off", "8 on": "8 off"}
ASKED = {
    "1 on": ("a stream with an adapter over one without", 0.93),
    "8 on": ("a batch of 8 with 8 adapters over one without", 0.85),
}
Turn = dict[str, dict[str, float]]


def file_of(setting: Setting, model: Path) -> Path:
    """Return the file that a setting runs: `model`, or one of the 7B shape, made if missing."""
    if setting.shaped is None or model.stem == shaped_file.TINY.name:  # a quick run has one file
        return model
    whole = shaped_file.SHAPES["llama-2-7b"]
    vocabulary = whole.vocabulary * LAYERS // whole.layers
    shape = dataclasses.replace(whole, layers=LAYERS, vocabulary=vocabulary)
    path = FILES / f"llama-2-7b-{LAYERS}-{setting.shaped}.gguf"
    return path if path.exists() else shaped_file.write(path, shape, setting.shaped)


def steps_of(llm: LLM, adapters: list[int], steps: int) -> dict[str, float]:
    """Return the seconds and the bytes of a decode step whose rows have these adapters."""
    runner: Any = llm.runner
    starts = [[(place + 17 * row) % runner.vocabulary for place in range(DEPTH)]
              for row in range(len(adapters))]  # fmt: skip
    sequences = [runner.open("adapters", DEPTH + steps) for _ in adapters]
    for sequence, tokens in zip(sequences, starts, strict=True):
        runner.prefill(sequence, tokens)
    before, began = runner.trace.copy(), time.perf_counter()
    for step in range(steps):
        for sequence in sequences:
            runner.reserve(sequence)
        token = step * 7919 % runner.vocabulary
        runner.run(
            [
                Rows(sequence, [token], adapter=adapter)
                for sequence, adapter in zip(sequences, adapters, strict=True)
            ]
        )
        for sequence in sequences:
            runner.commit(sequence, [0])
    seconds = time.perf_counter() - began
    read = runner.trace.since(before)
    for sequence in sequences:
        runner.close(sequence)
    total = read.weight_bytes_read + read.kv_bytes_read
    return {"seconds": seconds / steps, "bytes": total / steps}


def measure(model: Path, setting: str, plan: Plan) -> dict[str, Any]:
    """Return the rounds of a setting, by case; a first round does not count."""
    own = SETTINGS[setting]
    path = file_of(own, model)
    with tempfile.TemporaryDirectory() as folder:
        adapters = {
            f"a{seed}": shaped_adapter.write(Path(folder) / str(seed), path, RANK, seed)
            for seed in range(BATCH)
        }
        llm = LLM(path, adapters=adapters, max_num_seqs=BATCH, max_model_len=256, **own.options)
    rounds = []
    for number in range(plan.rounds + 1):
        order = list(CASES) if number % 2 else list(CASES)[::-1]
        rounds.append({case: steps_of(llm, CASES[case], plan.steps) for case in order})
    return {"rounds": rounds[1:]}


def ratio(rounds: list[Turn], case: str, figure: str) -> float:
    """Return the median of a figure without adapters over that of a case."""
    return statistics.median(each[OVER[case]][figure] / each[case][figure] for each in rounds)


def table(data: dict[str, Any]) -> str:
    """Return the results as text and tables."""
    rounds = {name: each["rounds"] for name, each in data["settings"].items()}
    asked = []
    for case, (what, least) in ASKED.items():
        for name, own in rounds.items():
            value = ratio(own, case, "seconds")
            asked.append([what, name, least, value, "yes" if value >= least else "**no**"])
    lines = []
    for name, own in rounds.items():
        milliseconds = [
            f"{1e3 * statistics.median(each[case]['seconds'] for each in own):.2f}"
            for case in CASES
        ]
        over = [
            f"{ratio(own, case, 'seconds'):.3f}, {ratio(own, case, 'bytes'):.3f}" for case in OVER
        ]
        lines.append([name, *milliseconds, *over])
    note = (
        f"Milliseconds of a decode step, and speed with adapters over that without, next to what "
        f"the bytes alone would give. Rank {RANK}, all matrices of the layers, medians of "
        f"{data['plan']['rounds']} rounds of {data['plan']['steps']} steps. {data['model']}, and "
        f"{LAYERS} layers in the shape of LLaMA-2-7B; {data['threads']} threads, "
        f"{data['machine']['isa']}."
    )
    head = ["weights", "1, off", "1, on", "8, off", "8, one adapter", "8, eight adapters"]
    head += ["1: on over off, by bytes", "8: one adapter", "8: eight adapters"]
    return "\n\n".join(
        [
            "## LoRA adapters",
            markdown(["what", "weights", "at least", "measured", "reached"], asked),
            markdown(head, lines),
            note,
        ]
    )


SCRIPT = Script(
    "adapters",
    __doc__,
    SETTINGS,
    Plan(rounds=5, steps=48),
    measure,
    table,
    record.results(__file__),
    {},
)

if __name__ == "__main__":
    sys.exit(SCRIPT.main())
