"""Softmax's share of a decode step and of a prompt, natively: EXAQ's Fig. 1 on a CPU.

    python -m benchmarks.attention.softmax_share            SmolLM2, 3 minutes
    python -m benchmarks.attention.softmax_share --quick    few tokens, into build/

A prompt of a length is run, then tokens are decoded after it, with keys and values in bfloat16.
Threads note how long they are in attention. Softmax is a part of the attention kernel, so it is
timed alone: the kernel's own function turns scores that lie in the CPU's caches into weights and
their sum, for a decode step as many as a key/value head has, for a prompt those of the rows that
run together. Its share is the time of all scores, over the time of all threads. Alone it waits for
nothing; within attention it overlaps with the reading of keys and values, so the share is what the
step would save at most without it. In a prompt every token has as many scores as tokens before it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import script
from benchmarks.harness.tables import markdown
from suffice import LLM, native
from suffice.engine.runner import Rows, Runner
from suffice.native import core

MODEL = "smollm2-135m"
WEIGHTS = ("none", "int8")
LENGTHS, STEPS, ROUNDS = (1024, 4096, 8128), 24, 3
QUICK = (128,), 3, 2
TILE = 64  # keys whose scores lie together
PUBLISHED = "0.39 (Llama-2-7B, Gaudi 2)"
HEAD = ["weights", "what", "tokens", "ms", "attention", "softmax", "published"]


def seconds_a_score(length: int, rows: int) -> float:
    """Return the seconds that one thread takes for a score, of `rows` queries on `length` keys."""
    tiles = max(length // TILE, 1)
    scores = np.random.default_rng(0).standard_normal((tiles, rows, TILE), np.float32)
    repeats = max((1 << 21) // scores.size, 1)
    return min(core.softmax_seconds(scores, None, False, repeats) for _ in range(7)) / scores.size


def timed(runner: Runner, work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time of some work, and the time of its threads in attention."""
    runner.take_part_seconds()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began, runner.take_part_seconds()["attention"]


def step_and_prompt(runner: Runner, length: int, steps: int, rounds: int) -> dict[str, list[float]]:
    """Return medians of wall time and threads' time in attention: of a step and of a prompt."""
    vocabulary = runner.decoder.config.vocab
    tokens = [(3 + 7 * at * at) % vocabulary for at in range(length)]
    found: dict[str, list[tuple[float, float]]] = {"step": [], "prompt": []}
    for _ in range(rounds):
        sequence = runner.open("text", length + steps)
        found["prompt"].append(timed(runner, lambda s=sequence: runner.prefill(s, tokens)))
        for at in range(steps):
            sequence.cache.reserve(1)
            row = Rows(sequence, [tokens[at]], 1)
            found["step"].append(timed(runner, lambda r=row: runner.run([r])))
            sequence.cache.commit([0])
        runner.close(sequence)
    return {
        name: [statistics.median(each) for each in zip(*pairs, strict=True)]
        for name, pairs in found.items()
    }


def rows_of(
    weights: str, lengths: tuple[int, ...], steps: int, rounds: int
) -> list[dict[str, Any]]:
    """Return the rows of one kind of weights."""
    llm = LLM(
        MODEL,
        dtype="bfloat16",
        quantization=weights,
        kv_cache_dtype="bfloat16",
        max_model_len=max(lengths) + steps,
    )
    runner, model = llm.runner, llm.runner.decoder.config
    runner.time_parts(True)
    group, threads, found = model.heads // model.kv_heads, native.threads(), []
    for length in lengths:
        measured = step_and_prompt(runner, length, steps, rounds)
        scores = {"step": float(length), "prompt": length * (length + 1) / 2}
        queries = {"step": group, "prompt": group * min(runner.tile_rows, length)}
        for what, (wall, attention) in measured.items():
            alone = seconds_a_score(length if what == "step" else TILE, queries[what])
            softmax = alone * scores[what] * model.heads * len(model.layers)
            found.append(
                {
                    "weights": weights,
                    "what": what,
                    "tokens": length,
                    "seconds": wall,
                    "attention": attention / (threads * wall),
                    "softmax": softmax / (threads * wall),
                }
            )
    return found


def table(data: dict[str, Any]) -> str:
    """Return the result as text and a table."""
    rows = [
        [
            row["weights"],
            row["what"],
            row["tokens"],
            1000 * row["seconds"],
            row["attention"],
            row["softmax"],
            PUBLISHED,
        ]
        for row in data["rows"]
    ]
    about = (
        f"{data['model']}, bfloat16 keys and values, {data['threads']} threads, "
        f"{data['machine']['isa']}. Shares of the threads' time, medians. Softmax is timed alone, "
        "with its scores in the CPU's caches."
    )
    return f"## Softmax's share of steps and prompts\n\n{about}\n\n{markdown(HEAD, rows)}"


def main() -> int:
    """Measure, and store the table."""
    options = script.quick_or_whole(__doc__)
    lengths, steps, rounds = QUICK if options.quick else (LENGTHS, STEPS, ROUNDS)
    rows = [row for weights in WEIGHTS for row in rows_of(weights, lengths, steps, rounds)]
    data = {"model": MODEL, "threads": native.threads(), "rows": rows}
    script.store(options, __file__, data, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
