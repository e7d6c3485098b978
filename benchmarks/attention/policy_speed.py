"""Time a token of ART that stops, over each policy, by depth and batch: ART's Tables 1 and 2.

    python -m benchmarks.attention.policy_speed --data-dir DIR       SmolLM2, half an hour
    ... --depths 8128 --batches 1 --settings exact art:change=1e-2   some of it
    python -m benchmarks.attention.policy_speed --data-dir DIR --quick    into build/

A text (WikiText-2) is a prompt of `depth` tokens, from which policies select; its next tokens are
decoded by exact attention and a few settings in turn, `batch` requests of it at a time, then by the
next few. So all see the same text and the same drift of the machine. A setting's ratio is the
median over steps of exact attention's time over its own. The paper's speed-ups are those of a token
on Mistral-7B (LongBench, Table 1) with the same share of tokens kept.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import record, shared_prompts
from benchmarks.harness.settings import accepted
from benchmarks.harness.tables import markdown
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner, Sequence
from suffice.errors import InputError
from suffice.eval.texts import line_ends, load_text
from suffice.progress import counting_bar

NAME, EXACT = "policy_speed", "exact"
LOOSE = "art:change=1e-2"
ARTS = ("art", LOOSE)
POLICIES = tuple(
    f"{name}:ratio={ratio}"
    for name in ("streaming", "snapkv", "pyramidkv")
    for ratio in (0.8, 0.5, 0.2)
)
SETTINGS = (
    EXACT,
    *ARTS,
    f"{LOOSE},block=16,order=sketch",
    "art:change=2e-2,block=16,values=0.002,order=sketch",
    "aet:keys=0.9",
    *POLICIES,
    *(f"{policy} + {art}" for policy in POLICIES for art in ARTS),
)
# ART, Table 1, Mistral-7B: times the speed of a token of exact attention.
PUBLISHED = {
    EXACT: "1.00",
    "art": "1.16",
    "streaming:ratio=0.8": "1.08",
    "streaming:ratio=0.8 + art": "1.24",
    "streaming:ratio=0.2": "1.18",
    "streaming:ratio=0.2 + art": "1.30",
    "snapkv:ratio=0.8": "1.07",
    "snapkv:ratio=0.8 + art": "1.17",
    "snapkv:ratio=0.2": "1.17",
    "snapkv:ratio=0.2 + art": "1.27",
    "pyramidkv:ratio=0.8": "1.06",
    "pyramidkv:ratio=0.8 + art": "1.19",
    "pyramidkv:ratio=0.2": "1.17",
    "pyramidkv:ratio=0.2 + art": "1.29",
}
WARM = 2  # steps before the clock starts
TOGETHER = 4  # settings that decode in turn with exact attention: their caches are in memory
HEAD = ["depth", "batch", "setting", "bytes over exact's", "ms a step", "tokens/s"]
HEAD += ["times exact", "published"]


@dataclass
class Entrant:
    """A setting's runner with its requests, and the seconds of each step."""

    runner: Runner
    sequences: list[Sequence]
    seconds: list[float] = field(default_factory=list)

    def step(self, token: int) -> None:
        """Decode one token of every request."""
        for sequence in self.sequences:
            sequence.cache.reserve(1)
        began = time.perf_counter()
        self.runner.step(self.sequences, [token] * len(self.sequences))
        self.seconds.append(time.perf_counter() - began)

    @property
    def read(self) -> int:
        """Bytes of keys, values and metadata that all requests read."""
        return self.runner.trace.kv_bytes_read


def entrants(
    runners: dict[str, Runner], tokens: list[int], depth: int, batch: int
) -> dict[str, Entrant]:
    """Return each setting with `batch` requests after a prompt of `depth` tokens."""
    found = {}
    for setting, runner in runners.items():
        sequences = [runner.open(str(number), len(tokens)) for number in range(batch)]
        for sequence in sequences:
            runner.prefill(sequence, tokens[:depth])
        found[setting] = Entrant(runner, sequences)
    return found


def rows_of(
    found: dict[str, Entrant], before: dict[str, int], depth: int, batch: int
) -> list[dict[str, Any]]:
    """Return a row for each setting; `before` has the bytes read before the steps."""
    exact = found[EXACT]
    rows = []
    for setting, own in found.items():
        pairs = zip(exact.seconds[WARM:], own.seconds[WARM:], strict=True)
        seconds = statistics.median(own.seconds[WARM:])
        read = (own.read - before[setting]) / (exact.read - before[EXACT])
        ratio = statistics.median(theirs / ours for theirs, ours in pairs)
        figures = [read, 1000 * seconds, batch / seconds, ratio, PUBLISHED.get(setting, "")]
        rows.append(dict(zip(HEAD, [depth, batch, f"`{setting}`", *figures], strict=True)))
    return rows


def measured(
    runners: dict[str, Runner], text: list[int], flags: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the rows of all depths and batches."""
    others = [setting for setting in runners if setting != EXACT]
    groups = [others[at : at + TOGETHER] for at in range(0, len(others), TOGETHER)]
    rows: list[dict[str, Any]] = []
    for depth in flags.depths:
        for batch in flags.batches:
            with counting_bar() as bar:
                line = bar.add_task(f"{depth} x {batch}", total=max(len(groups), 1))
                for number, group in enumerate(groups or [[]]):
                    own = {setting: runners[setting] for setting in (EXACT, *group)}
                    exact, *more = in_turn(own, text[: depth + flags.steps], depth, batch)
                    rows += more if number else [exact, *more]
                    bar.update(line, advance=1)
    return rows


def in_turn(
    runners: dict[str, Runner], tokens: list[int], depth: int, batch: int
) -> list[dict[str, Any]]:
    """Return the rows of settings that decode the tokens after `depth` in turn, exact first."""
    found = entrants(runners, tokens, depth, batch)
    before = {setting: own.read for setting, own in found.items()}
    order = list(found.values())
    for index, token in enumerate(tokens[depth:]):
        turn = index % len(order)
        for own in order[turn:] + order[:turn]:
            own.step(token)
    rows = rows_of(found, before, depth, batch)
    for own in order:
        for sequence in own.sequences:
            own.runner.close(sequence)
    return rows


def table(data: dict[str, Any]) -> str:
    """Return the result as text and a table."""
    about = (
        f"{data['model']}, WikiText-2 ({data['line_ends']} line ends), {data['steps']} steps after "
        "a prompt, all requests with the same text, bfloat16 keys and values; a step reads the "
        "weights too. 'Times exact' is the median over steps of exact attention's time over a "
        "setting's, a few settings at a time; memory is faster at some hours than at others, so "
        "milliseconds of different settings do not compare. Published: ART, Table 1, Mistral-7B, "
        "a token's time."
    )
    rows = [list(row.values()) for row in data["rows"]]
    refused = [f"Refused: `{setting}` ({why})." for setting, why in data["refused"].items()]
    return "\n\n".join(["## ART over policies", about, markdown(HEAD, rows), *refused])


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True, help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--depths", type=int, nargs="+", default=[2048, 8128])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--steps", type=int, default=34)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.depths, flags.batches, flags.steps = [256], [1, 2], WARM + 2
        flags.settings = [*SETTINGS[:3], POLICIES[0], f"{POLICIES[4]} + {LOOSE}"]
    if flags.steps <= WARM:
        raise InputError(f"--steps={flags.steps}: must be above {WARM}, which are not timed")
    flags.settings = list(dict.fromkeys([EXACT, *flags.settings]))
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def main() -> int:
    """Measure all and write the result."""
    try:
        flags = options()
        refused: dict[str, str] = {}
        techniques = accepted(flags.model, flags.settings, refused)
        length = max(flags.depths) + flags.steps
        text = load_text("wikitext2", flags.data_dir)
        config = Config.create(flags.model, max_model_len=length, threads=flags.threads)
        config, base, tokenizer = load(config)
    except InputError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    runners, _ = shared_prompts.runners(config, base, techniques)
    rows = measured(runners, tokenizer.encode(text[: 8 * length]), flags)
    shown = {"model": Path(flags.model).name, "line_ends": line_ends(text)}
    shown |= {"steps": flags.steps - WARM, "rows": rows, "refused": refused}
    record.write(flags.out, NAME, record.facts() | shown, table(shown))
    print(table(shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
