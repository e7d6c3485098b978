"""What the weight of clipped keys costs at long context: EXAQ's tail, kept or flushed.

    python -m benchmarks.attention.exaq_tail --data-dir DIR --calibration FILE   (ten minutes)
    python -m benchmarks.attention.exaq_tail --data-dir DIR --calibration FILE --quick

A window of WikiText-2 is read as a prompt by exact attention but for its last tokens. These, which
are known, go through the decode step by each softmax, on copies of the same cache, and their
distributions are compared with those of the exact one. So what is seen is the softmax at that
depth alone. `clip` is the paper's rule, by which every clipped key weighs e^C; `flush` gives it no
weight.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.harness import record, shared_prompts
from benchmarks.harness.tables import markdown
from suffice.attention import SOFTMAXES
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.eval.perplexity import PerplexityPlan, PerplexityTally, scored, tallied, windows_of
from suffice.eval.texts import load_text
from suffice.progress import progress_bar
from suffice.trace import Trace

NAME = "exaq_tail"
MODEL, DEPTHS, WINDOWS, STEPS = "smollm2-135m", (4096, 8192), 2, 256
SETTINGS = [f"exaq:bits={bits},tail={tail}" for bits in (3, 2) for tail in ("clip", "flush")]
HEAD = ["tokens", "softmax", "KL mean", "KL 99.9 %", "same token", "perplexity", "V per head"]
QUICK = record.BUILD / "exaq-tail-quick"


def measure(
    config: Config, runner: Runner, windows: list[list[int]], steps: int, progress: Any
) -> list[list[Any]]:
    """Return the lines of one depth."""
    depth = len(windows[0])
    task = progress.add_task(f"{depth} tokens", total=1 + len(SETTINGS))
    plan = PerplexityPlan(depth, together=len(windows), prompt=depth - steps)
    seams = {"policy": config.policy}
    settings = {name: seams | {"softmax": SOFTMAXES.build(name)} for name in ("exact", *SETTINGS)}
    runners, prompts = shared_prompts.runners(config, runner, settings)
    expected = list(scored(runners["exact"], windows, plan))
    progress.advance(task)
    rows = []
    for setting in SETTINGS:
        found = scored(runners[setting], windows, plan)
        *_, tally = tallied(found, expected, len(windows))
        rows.append(_row(depth, setting, tally, runners[setting].trace))
        progress.advance(task)
    prompts.forget()
    return rows


def _row(depth: int, setting: str, tally: PerplexityTally, trace: Trace) -> list[Any]:
    against = tally.result().against
    assert against is not None
    return [
        depth,
        f"`{setting}`",
        against.divergence,
        against.divergence_999,
        against.agreement,
        f"{100 * (against.ratio - 1):+.2f} %",
        trace.head_value_fraction,
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
            windows = windows_of(tokenizer, text, PerplexityPlan(depth, flags.windows), max(depths))
            rows += measure(config, runner, windows, steps, progress)
    about = (
        f"{flags.model}, WikiText-2, the last {steps} tokens of {flags.windows} windows, "
        f"{config.kv_cache_dtype} keys and values; against the exact softmax."
    )
    text = f"## EXAQ's tail at long context\n\n{about}\n\n{markdown(HEAD, rows)}"
    folder = QUICK if flags.quick else record.results(__file__)
    record.write(folder, NAME, record.facts() | {"rows": rows}, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
