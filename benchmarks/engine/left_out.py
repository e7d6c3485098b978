"""What leaving out a token's lightest experts saves, and what it changes, in a random mixture.

    python -m benchmarks.engine.left_out                       8 layers of Qwen3-30B-A3B's shape
    python -m benchmarks.engine.left_out --settings mass:0.9   one setting; the others' rows go
    python -m benchmarks.engine.left_out --quick               a tiny shape, to see that it runs

One engine computes all experts, another leaves some out. Both run the same tokens one by one, in
turn, and a ratio of times is of one round. The error of logits is the root of the mean square of
their difference over that of all experts' logits. Codes and routers of the file are random: bytes
and times follow from the weights that a router gives, the loss of a real model does not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.experts import FILES, LAYERS
from benchmarks.harness import record, script, shaped_experts
from benchmarks.harness.shaped_experts import QWEN3_30B_A3B, TINY
from benchmarks.harness.tables import markdown
from suffice import LLM, native
from suffice.errors import InputError
from suffice.experts import EXPERTS
from suffice.trace import Trace

NAME, KIND, ALL = "left_out", "Q4_0", "all"
SETTINGS = tuple(f"mass:keep={keep}" for keep in (0.98, 0.95, 0.9, 0.8, 0.6))
PROMPT, STEPS = 8, 64  # tokens
NOTE = "**A quick run of a tiny shape: no figure means anything.**"


class Run:
    """The same tokens again and again: seconds of each round, logits and reads of the last."""

    def __init__(self, path: Path, setting: str, tokens: list[int]) -> None:
        self._runner = LLM(path, experts=setting, max_model_len=len(tokens)).runner
        self._tokens = tokens
        self.seconds: list[float] = []

    def round(self) -> None:
        """Run the tokens once; the first ones are a prompt, which is not timed."""
        runner, before = self._runner, self._runner.trace.copy()
        sequence = runner.open(NAME, len(self._tokens))
        runner.prefill(sequence, self._tokens[:PROMPT])
        rows, began = [], time.perf_counter()
        for token in self._tokens[PROMPT:]:
            runner.reserve(sequence)
            rows.append(runner.step([sequence], [token])[0])
        self.seconds.append(time.perf_counter() - began)
        runner.close(sequence)
        self.logits = np.array(rows, np.float64)
        self.reads: Trace = runner.trace.since(before)


def compared(run: Run, whole: Run) -> dict[str, float]:
    """Return the figures of a run compared with those of all experts."""
    error = np.square(run.logits - whole.logits).mean() / np.square(whole.logits).mean()
    own, every = (
        (each.reads.expert_bytes_read, each.reads.weight_bytes_read + each.reads.kv_bytes_read)
        for each in (run, whole)
    )
    return {
        "expert_bytes": own[0] / every[0],
        "bytes": own[1] / every[1],
        "missing": run.reads.experts_missing,
        "time": statistics.median(
            before / after for before, after in zip(whole.seconds[1:], run.seconds[1:], strict=True)
        ),
        "error": float(error) ** 0.5,
        "same": float((run.logits.argmax(-1) == whole.logits.argmax(-1)).mean()),
    }


def measure(path: Path, setting: str, tokens: list[int], rounds: int) -> dict[str, float]:
    """Return a setting's figures; a first round is not timed."""
    runs = [Run(path, each, tokens) for each in (ALL, setting)]
    for number in range(rounds + 1):
        for run in runs[:: -1 if number % 2 else 1]:
            run.round()
    return compared(runs[1], runs[0])


def table(data: dict[str, Any]) -> str:
    """Return the results as a table."""
    shape = data["shape"]
    about = (
        f"{shape['layers']} layers in the shape of {shape['name']}, {KIND}: {shape['chosen']} of "
        f"{shape['experts']} experts for a token, random codes and routers. {data['steps']} decode "
        f"steps of one request, {data['threads']} threads, {data['machine']['isa']}; medians of "
        f"{data['rounds']} rounds. Bytes and speed are over those of all experts. 'Left out' is "
        "the largest share of a token's weights. Something may be left out of the prompt, too."
    )
    head = ["setting", "bytes of experts", "bytes of a step", "speed of a step"]
    head += ["left out, at most", "error of logits", "same token"]
    rows = [
        [
            f"`{setting}`",
            *(f"{own[name]:.3g}" for name in ("expert_bytes", "bytes")),
            f"{own['time']:.2f}",
            *(f"{own[name]:.3g}" for name in ("missing", "error", "same")),
        ]
        for setting, own in data["settings"].items()
    ]
    quick = [NOTE] * data["quick"]
    return "\n\n".join(["## Experts left out", *quick, about, markdown(head, rows)])


def options() -> argparse.Namespace:
    """Return the options of the command line.

    Raises:
        InputError: An unknown technique, or no round.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tiny shape, results in build/")
    parser.add_argument("--output", type=Path, help="folder for the results")
    flags = parser.parse_args()
    if flags.rounds < 1:
        raise InputError(f"--rounds={flags.rounds}: must be at least 1")
    for setting in flags.settings:
        EXPERTS.build(setting)
    return flags


def run(flags: argparse.Namespace) -> str:
    """Measure the settings, store them, and return the table."""
    shape = TINY if flags.quick else QWEN3_30B_A3B.with_layers(LAYERS)
    path = FILES / f"{shape.name}-{shape.layers}-{KIND}.gguf"
    if not path.exists():
        shaped_experts.write(path, shape, KIND)
    random = np.random.default_rng(0)
    steps = 4 if flags.quick else STEPS
    tokens = random.integers(0, shape.vocabulary, PROMPT + steps).tolist()
    data = record.facts() | {
        "shape": vars(shape),
        "threads": native.cores(),
        "rounds": flags.rounds,
        "steps": steps,
        "quick": flags.quick,
        "settings": {each: measure(path, each, tokens, flags.rounds) for each in flags.settings},
    }
    usual = record.BUILD / f"{NAME}-quick" if flags.quick else record.results(__file__)
    record.write(flags.output or usual, record.name_of(NAME), data, table(data))
    return table(data)


def main() -> int:
    """Measure, print the table and store it."""
    return script.printed(NAME, lambda: run(options()))


if __name__ == "__main__":
    sys.exit(main())
