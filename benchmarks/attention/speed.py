"""Time decode steps of each technique and of exact attention, deep in a real text.

    python -m benchmarks.attention.speed --data-dir DIR    the table (ten minutes)
    python -m benchmarks.attention.speed --data-dir DIR --overhead    what checks cost (3 minutes)
    python -m benchmarks.attention.speed --data-dir DIR --quick       few tokens, into build/

The text (WikiText-2) is run up to a depth with exact attention. Its next tokens are then decoded
one by one, each by all settings in turn, so that all see the same keys and the same drift of the
machine. All settings share the model's weights; each has its own copy of the cache, in bfloat16 or
the type after its ` @ `. A setting's ratio is the median of its ratios to exact attention, token by
token; half of these are between the quartiles. Reads are counted over those steps, including the
sketch, over what exact attention reads of the cache in bfloat16. Results with `--threads N` have a
file of their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.harness import record
from benchmarks.harness.settings import stored_in
from benchmarks.harness.tables import markdown
from suffice.attention import ATTENTIONS
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.eval.texts import load_text
from suffice.trace import Trace

NAME = "speed"
EXACT = "exact"
# No share of the mass exceeds 1, and no change is smaller than one whose square is 0.
CHECKED = ("aet:keys=1.999,values=0", "art:change=1e-30")
SETTINGS = (
    "certified:bounded=false,eps=0.3,values=0.002",
    "certified:eps=0.05",
    "aet:keys=all,values=0.001",
    "aet:keys=0.9",
    "art:change=1e-2,block=16,order=sketch",
    "art:change=1e-2,block=16,values=0.002,order=sketch",
    "art:change=2e-2,block=16,values=0.002,order=sketch",
    "tiers:eps=0.5,skip=0.0002",
    "exact @ int8",
    "exact @ planes",
    "tiers:eps=0.5,skip=0.0002 @ planes",
    "tiers:eps=0.8,skip=0.0007 @ planes",
    # Checked after every block, never satisfied: all rows are read, so the extra time is overhead.
    # `aet:keys=all,values=0` and `art:change=0` would run as exact attention.
    *CHECKED,
)
WARM = 2  # tokens before the clock starts
HEAD = [
    "weights",
    "depth",
    "setting",
    "K read",
    "V read",
    "bytes read",
    "ms a step",
    "exact / this",
    "quartiles",
]


@dataclass
class Subject:
    """A setting with its model, which shares the weights, and its copy of the cache."""

    setting: str
    model: NativeModel
    cache: Any
    trace: Trace
    seconds: list[float] = field(default_factory=list)

    def step(self, token: int) -> None:
        """Decode one token and record its time."""
        self.cache.reserve(1)
        began = time.perf_counter()
        self.model.step([StepRows(self.cache, [token])], self.trace)
        self.seconds.append(time.perf_counter() - began)
        self.cache.commit([0])


def subjects(runner: Runner, tokens: list[int], settings: list[str], steps: int) -> list[Subject]:
    """Run all tokens but the last `steps`; return the settings, exact attention first."""
    model, found = runner.decoder.config, []
    settings = [EXACT, *settings]
    for stored in dict.fromkeys(stored_in(setting)[1] for setting in settings):
        own = runner if stored is None else with_storage(runner, stored)
        techniques = [name for name, its in map(stored_in, settings) if its == stored]
        for technique in techniques:  # the cache keeps what each needs
            own.allow(dataclasses.replace(own.config, attention=ATTENTIONS.build(technique)))
        read = own.open("text", len(tokens))
        own.prefill(read, tokens[: len(tokens) - steps])
        read.cache.reserve(steps)
        for setting in settings:
            technique, its = stored_in(setting)
            if its != stored:
                continue
            rules = [[ATTENTIONS.build(technique).rule()] * model.kv_heads for _ in model.layers]
            trace = Trace(len(model.layers), model.kv_heads, model.heads // model.kv_heads)
            decoder = NativeModel(runner.decoder, len(tokens), rules)
            found.append(Subject(setting, decoder, own.fork(read).cache, trace))
        own.close(read)
    return sorted(found, key=lambda subject: settings.index(subject.setting))


def with_storage(runner: Runner, stored: str) -> Runner:
    """Return a runner of the same weights that keeps keys and values in another type."""
    plain = {"kv_cache_dtype": stored, "attention": ATTENTIONS.build(EXACT)}
    config = dataclasses.replace(runner.config, **plain)
    return Runner(config, runner.decoder, runner.sample, stamp=runner.stamp)


def row(weights: str, depth: int, subject: Subject, exact: Subject) -> list[Any]:
    """Return a setting's row of the table."""
    reads = subject.trace
    pairs = zip(exact.seconds[WARM:], subject.seconds[WARM:], strict=True)
    low, middle, high = statistics.quantiles([b / a for b, a in pairs], n=4, method="inclusive")
    return [
        weights,
        depth,
        f"`{subject.setting}`",
        reads.key_fraction,
        reads.value_fraction,
        reads.kv_bytes_read / exact.trace.kv_bytes_held,
        1000 * statistics.median(subject.seconds[WARM:]),
        middle,
        f"{low:.3g} to {high:.3g}",
    ]


def measure(flags: argparse.Namespace, weights: str, progress: Progress) -> list[list[Any]]:
    """Return the rows of one quantization of the weights, at all depths."""
    length = max(flags.depths) + flags.steps
    config = Config.create(
        flags.model, quantization=weights, max_model_len=length, threads=flags.threads
    )
    _, runner, tokenizer = load(config)
    text = tokenizer.encode(load_text("wikitext2", flags.data_dir)[: 8 * length])
    rows = []
    for depth in flags.depths:
        task = progress.add_task(f"{weights} {depth}", total=flags.steps)
        tokens = text[: depth + flags.steps]
        entrants = subjects(runner, tokens, flags.settings, flags.steps)
        for index, token in enumerate(tokens[depth:]):
            turn = index % len(entrants)
            for subject in entrants[turn:] + entrants[:turn]:
                subject.step(token)
            progress.advance(task)
        rows += [row(weights, depth, subject, entrants[0]) for subject in entrants]
        for subject in entrants:
            subject.cache.close()
    return rows


def table(flags: argparse.Namespace, rows: list[list[Any]]) -> str:
    """Return the results as text and a table."""
    about = (
        f"{flags.model}, WikiText-2, {flags.steps - WARM} steps at each depth, "
        f"{'' if flags.threads is None else f'threads: {flags.threads}, '}keys and values in "
        "bfloat16 or the type after `@`; bytes are over those of exact attention in bfloat16. A "
        "step reads the weights too, which no technique of attention spares."
    )
    return f"## Decode steps\n\n{about}\n\n{markdown(HEAD, rows)}"


def main() -> int:
    """Measure all and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True, help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--settings", nargs="*")
    parser.add_argument("--overhead", action="store_true", help="only thresholds that never stop")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", nargs="*", default=["none", "int8", "file"])
    parser.add_argument("--depths", nargs="*", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    flags.depths = flags.depths or ([128] if flags.quick else [2048, 8128])
    flags.steps = flags.steps or (WARM + 2 if flags.quick else 34)
    if flags.steps < WARM + 2:
        parser.error(f"--steps {flags.steps}: must be at least {WARM + 2}")
    flags.settings = flags.settings or list(CHECKED if flags.overhead else SETTINGS)
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    rows = []
    with Progress(transient=True) as progress:
        for weights in flags.weights:
            rows += measure(flags, weights, progress)
    found = [dict(zip(HEAD, each, strict=True)) for each in rows]
    name = f"{NAME}_overhead" if flags.overhead else NAME
    name += "" if flags.threads is None else f"_threads_{flags.threads}"
    record.write(flags.out, name, record.facts() | {"rows": found}, table(flags, rows))
    print(table(flags, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
