"""What the weight of clipped keys costs at long context: EXAQ's tail, kept or flushed.

    python benchmarks/exaq_tail.py --data-dir DIR --calibration FILE        (some ten minutes)
    python benchmarks/exaq_tail.py --data-dir DIR --calibration FILE --quick

A window of WikiText-2 is read as a prompt by exact attention but for its last tokens. These, which
are known, go through the decode step by each softmax, on copies of the same cache, and their
distributions are compared with those of the exact one. So what is seen is the softmax at that
depth alone. `clip` is the paper's rule, by which every clipped key weighs e^C; `flush` gives it no
weight.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record
from suffice.attention import SOFTMAXES
from suffice.engine.config import Config
from suffice.engine.runner import Runner, load
from suffice.eval.perplexity import Plan, Scores, Tally, windows_of
from suffice.eval.texts import load_text
from suffice.models.native_model import NativeModel, Rows
from suffice.progress import progress_bar
from suffice.trace import Trace

NAME = "exaq_tail"
MODEL, DEPTHS, WINDOWS, STEPS, TOGETHER = "smollm2-135m", (4096, 8192), 2, 256, 16
SETTINGS = [f"exaq:bits={bits},tail={tail}" for bits in (3, 2) for tail in ("clip", "flush")]
HEAD = ["tokens", "softmax", "KL mean", "KL 99.9 %", "same token", "perplexity", "V per head"]
QUICK = Path(__file__).parent.parent / "build" / "exaq-tail-quick"


@dataclass
class Subject:
    """A softmax, and what it made of the windows so far."""

    setting: str
    model: NativeModel
    tally: Tally
    trace: Trace

    def decode(self, cache: Any, window: int, tokens: list[int], first: int) -> list[Scores]:
        """Run the tokens from `first` on, which the cache has not seen; the last predicts none."""
        found = []
        for at in range(first, len(tokens) - 1, TOGETHER):
            end = min(at + TOGETHER, len(tokens) - 1)
            cache.reserve(end - at)
            rows = Rows(cache, tokens[at:end], outputs="all")
            logits = self.model.step([rows], self.trace)
            cache.commit(list(range(end - at)))
            targets = tokens[at + 1 : end + 1]
            found.append(Scores([window] * len(targets), targets, logits))
        return found


def subjects(runner: Runner, config: Config, length: int, windows: int) -> list[Subject]:
    """Return the exact softmax and the others."""
    model = runner.decoder.config
    assert config.calibration is not None
    made = []
    for setting in ("exact", *SETTINGS):
        softmax = SOFTMAXES.build(setting)
        levels = softmax.levels(config.calibration)
        trace = Trace(len(model.layers), model.kv_heads, model.heads // model.kv_heads)
        native = NativeModel(runner.decoder, length, levels=levels)
        made.append(Subject(setting, native, Tally(windows), trace))
    return made


def measure(
    runner: Runner, config: Config, windows: list[list[int]], steps: int, progress: Any
) -> list[list[Any]]:
    """Return the lines of one depth."""
    depth = len(windows[0])
    task = progress.add_task(f"{depth} tokens", total=len(windows) * (1 + len(SETTINGS)))
    exact, *others = subjects(runner, config, depth, len(windows))
    for number, tokens in enumerate(windows):
        sequence = runner.open("window", depth)
        runner.prefill(sequence, tokens[: depth - steps])
        sequence.cache.reserve(steps)
        expected: list[Scores] = []
        for subject in (exact, *others):
            fork = runner.fork(sequence)
            found = subject.decode(fork.cache, number, tokens, depth - steps)
            expected = expected or found
            for scores, reference in zip(found, expected, strict=True):
                subject.tally.add(scores, reference)
            runner.close(fork)
            progress.advance(task)
        runner.close(sequence)
    return [_row(depth, subject) for subject in others]


def _row(depth: int, subject: Subject) -> list[Any]:
    against = subject.tally.result().against
    assert against is not None
    return [
        depth,
        f"`{subject.setting}`",
        against.divergence,
        against.divergence_999,
        against.agreement,
        f"{100 * (against.ratio - 1):+.2f} %",
        subject.trace.head_value_fraction,
    ]


def main() -> int:
    """Measure, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True, help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--calibration", required=True, help="of the model")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--quick", action="store_true")
    flags = parser.parse_args()
    depths, steps = ((128,), 16) if flags.quick else (DEPTHS, STEPS)
    asked = Config.create(
        flags.model, softmax=SETTINGS[0], calibration=flags.calibration, max_model_len=max(depths)
    )
    config, runner, tokenizer = load(asked)
    text, rows = load_text("wikitext2", flags.data_dir), []
    with progress_bar() as progress:
        for depth in depths:
            windows = windows_of(tokenizer, text, Plan(depth, flags.windows), max(depths))
            rows += measure(runner, config, windows, steps, progress)
    about = (
        f"{flags.model}, WikiText-2, the last {steps} tokens of {flags.windows} windows, "
        f"{config.kv_cache_dtype} keys and values; against the exact softmax."
    )
    text = f"## EXAQ's tail at long context\n\n{about}\n\n{record.markdown(HEAD, rows)}"
    folder = QUICK if flags.quick else record.RESULTS
    record.write(folder, NAME, record.facts() | {"rows": rows}, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
