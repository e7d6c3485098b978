"""Bounds of `tiers` and the truth: how close they are, and how many softmaxes are beyond theirs.

    python -m benchmarks.attention.bounds --data-dir DIR           SmolLM2, half an hour on a core
    ... --settings "tiers:eps=0.5,skip=0.0002,sample=64 @ planes"  only this one
    ... --depths 2048 --limit 60                                   more windows of one depth
    ... --quick                                                    tiny sizes, into build/

Parts of a text (WikiText-2), spread evenly over it, are run up to a depth by exact attention. The
next TOKENS tokens attend by each setting in turn, and every step is audited: each softmax, a token
in a layer and query head, has its bound on the total variation distance to the exact one, and the
distance itself. A bound over a distance is counted where that is above 1e-5. 'Within' is the share
of softmaxes whose bound is at most 0.10; 'beyond' those further away than their bound: none may be
if it is certain, and at most the share `delta` if it has a confidence. The query heads of a group
share their sample, so 'chance' looks at the first head of each group, at the second, and so on:
were each softmax beyond its bound with the probability `delta`, the binomial distribution would
give as many with that probability, that of the place with the most times the number of places.

A window's softmaxes are stored as soon as it has run, and a later call goes on with the next one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from benchmarks.harness import record, script, shared_prompts
from benchmarks.harness.settings import accepted
from benchmarks.harness.tables import CellStore, markdown
from suffice import native
from suffice.cache import row_bytes
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, windows_of
from suffice.eval.texts import described, load_text
from suffice.progress import progress_bar
from suffice.trace import Audit

NAME = "bounds"
DEPTHS, TOKENS, TOGETHER, LIMIT = (2048, 8000), 64, 16, 8
SETTINGS = tuple(
    f"tiers:{options}{stored}"
    for options in (
        "bounded=true,eps=0.1,skip=0.00001",
        "eps=0.5,skip=0.0002,sample=64",
        "eps=0.1,skip=0.00002,sample=128",
        "eps=0.5,skip=0.0002,sample=16,delta=0.1",
    )
    for stored in (" @ planes", "")
)
WITHIN = 0.10
TOLERANCE = 1e-5  # of a bound, because sums of weights are computed in float32
OCTAVES, STEPS, TOP = 24, 32, 8  # histograms from 2^-16 to 2^8, 32 bins per factor of 2


class Softmaxes(Audit):
    """Keeps the distances and bounds of audited steps."""

    def __init__(self, layers: int, heads: int) -> None:
        super().__init__(layers, heads)
        self.found: list[np.ndarray] = []

    def add(self, found: np.ndarray) -> None:
        """Add the queries of a step; see `Audit.add`."""
        super().add(found)
        self.found.append(found.astype(np.float64))


def spread(count: int) -> list[int]:
    """Return 0 to count - 1 so that all first ones are spread evenly, whatever their number."""
    digits = max(count - 1, 1).bit_length()
    turned = [int(f"{at:0{digits}b}"[::-1], 2) for at in range(1 << digits)]
    return [at for at in turned if at < count]


def bins(values: np.ndarray) -> list[int]:
    """Return how many values fall into each bin; a bin holds those up to its upper edge."""
    octaves = np.log2(np.maximum(values, 2.0 ** (TOP - OCTAVES))) - (TOP - OCTAVES)
    at = np.ceil(octaves * STEPS).clip(0, OCTAVES * STEPS).astype(np.int64)
    counts: list[int] = np.bincount(at, minlength=OCTAVES * STEPS + 1).tolist()
    return counts


def quantile(counts: list[int], share: float) -> float:
    """Return the upper edge of the bin that holds this quantile: too large by 2 % at most."""
    reached = np.cumsum(counts)
    at = int(np.searchsorted(reached, share * reached[-1]))
    return float(2.0 ** (at / STEPS + TOP - OCTAVES))


def chance(beyond: list[int], trials: int, delta: float) -> float:
    """Return how probable it is that some place has as many beyond their bound as one has.

    There are `trials` softmaxes at each place of a group, each beyond its bound with the
    probability `delta`.
    """
    count = np.arange(max(beyond), trials + 1)
    factorials = np.cumsum(np.log(np.maximum(np.arange(trials + 1), 1)))
    ways = factorials[-1] - factorials[count] - factorials[trials - count]
    tail = np.exp(ways + count * np.log(delta) + (trials - count) * np.log1p(-delta)).sum()
    return min(len(beyond) * float(tail), 1.0)


def empty(group: int) -> dict[str, Any]:
    """Return the counts of no softmaxes, with their histograms."""
    counts = dict.fromkeys(("windows", "softmaxes", "within", "beyond_output", "read", "held"), 0)
    histograms = {name: [0] * (OCTAVES * STEPS + 1) for name in ("bound", "distance", "ratio")}
    return counts | {"beyond": [0] * group, "most": 0.0} | histograms


def count(counts: dict[str, Any], found: np.ndarray) -> None:
    """Add a window's softmaxes [5, L, T, H]; see `Audit.add`."""
    distance, _, bound, shift, shift_bound = found
    group = len(counts["beyond"])
    beyond = (distance > bound + TOLERANCE).reshape(-1, group).sum(0).tolist()
    counts["beyond"] = [sum(pair) for pair in zip(counts["beyond"], beyond, strict=True)]
    counts["beyond_output"] += int((shift > shift_bound + TOLERANCE).sum())
    counts["softmaxes"] += bound.size
    counts["within"] += int((bound <= WITHIN).sum())
    counts["most"] = max(counts["most"], float(bound.max()))
    known = distance > TOLERANCE
    values = {"bound": bound, "distance": distance, "ratio": bound[known] / distance[known]}
    for name, each in values.items():
        counts[name] = [sum(pair) for pair in zip(counts[name], bins(each.ravel()), strict=True)]


def measured(runner: Runner, window: list[int], depth: int, counts: dict[str, Any]) -> None:
    """Add the softmaxes of a window's tokens from `depth` on, and what they read.

    Raises:
        InputError: The setting has no bounds.
    """
    model, before = runner.decoder.config, runner.trace.copy()
    runner.audit, runner.trace.audit = 1, (kept := Softmaxes(len(model.layers), model.heads))
    sequence = runner.open(NAME, len(window))
    runner.prefill(sequence, window[:depth])
    for at in range(depth, len(window), TOGETHER):
        tokens = window[at : at + TOGETHER]
        runner.reserve(sequence, len(tokens))
        runner.advance([sequence], [tokens])
    runner.close(sequence)
    found = np.concatenate(kept.found, 2)
    if np.isnan(found[2]).any():
        raise InputError("settings must have bounds: tiers:bounded=true or tiers:sample=64")
    count(counts, found)
    runner.trace.audit = None
    reads = runner.trace.since(before)
    counts["read"] += reads.kv_bytes_read
    counts["held"] += reads.rows_held * 2 * row_bytes("bfloat16", model.head_size)


def cell_of(counts: dict[str, Any], delta: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a cell of what the table shows, and the counts it is made of."""
    of_group = counts["softmaxes"] // len(counts["beyond"])
    whole = ("windows", "softmaxes", "beyond_output", "most")
    cell = {name: counts[name] for name in whole} | {
        "bytes": counts["read"] / counts["held"],
        "within": counts["within"] / counts["softmaxes"],
        "beyond": sum(counts["beyond"]),
        "delta": delta,
        "ratio": quantile(counts["ratio"], 0.5),
    }
    for name, most in (("bound", counts["most"]), ("distance", 1.0)):
        cell[name] = {str(share): min(quantile(counts[name], share), most) for share in (0.5, 0.99)}
    if delta:
        cell["chance"] = chance(counts["beyond"], of_group, delta)
    return cell, counts


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--text", default="wikitext2", help="wikitext2, or a file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--depths", nargs="+", type=int, default=list(DEPTHS))
    parser.add_argument("--limit", type=int, default=LIMIT, help="windows of a depth")
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--quick", action="store_true", help="tiny sizes, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    flags.tokens = TOKENS
    if flags.quick:
        flags.depths, flags.tokens, flags.limit = [256], 4, 1
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def run(flags: argparse.Namespace) -> CellStore:
    """Measure the windows that are not stored yet, depth by depth.

    Raises:
        InputError: A model, text or setting that cannot be used.
    """
    text = load_text(flags.text, flags.data_dir)
    refused: dict[str, str] = {}
    techniques = accepted(flags.model, flags.settings, refused)
    if refused:
        raise InputError("; ".join(refused.values()))
    longest = max(flags.depths) + flags.tokens
    config = Config.create(flags.model, max_model_len=longest, threads=flags.threads)
    config, base, tokenizer = load(config)
    facts = described(Path(flags.text).name, text, [[]])
    shown = {"model": PurePath(flags.model).name, "tokens": flags.tokens}
    shown["text"] = {name: facts[name] for name in ("name", "sha256", "line_ends")}
    store = CellStore(flags.out, NAME, shown, record.facts(), table)
    store.read()
    found, prompts = shared_prompts.runners(config, base, techniques)
    for depth in flags.depths:
        windows = windows_of(tokenizer, text, PerplexityPlan(depth + flags.tokens), longest)
        chosen = [windows[at] for at in spread(len(windows))[: flags.limit]]
        at_depth(store, found, prompts, chosen, depth)
    store.write()
    return store


def at_depth(
    store: CellStore,
    runners: dict[str, Runner],
    prompts: shared_prompts.Prompts,
    windows: list[list[int]],
    depth: int,
) -> None:
    """Measure the windows of a depth that are not stored yet."""
    column = str(depth)
    with progress_bar("{task.description}", "{task.completed}/{task.total} windows") as bar:
        line = bar.add_task("", total=len(windows) * len(runners))
        for number, window in enumerate(windows):
            for setting, runner in runners.items():
                bar.update(line, description=f"{depth} {setting}", advance=1)
                model = runner.decoder.config
                counts = store.details.get(setting, {}).get(column)
                counts = counts or empty(model.heads // model.kv_heads)
                if counts["windows"] > number:
                    continue
                measured(runner, window, depth, counts)
                counts["windows"] += 1
                delta = 1 - runner.config.attention.confidence
                store.keep(setting, column, *cell_of(counts, delta))
            prompts.forget()


def table(store: CellStore) -> str:
    """Return the table."""
    rows = [
        [
            f"`{setting}`",
            int(depth),
            cell["softmaxes"],
            cell["bytes"],
            *(cell[name][share] for name in ("bound", "distance") for share in ("0.5", "0.99")),
            cell["ratio"],
            cell["within"],
            cell["beyond"],
            round(cell["delta"] * cell["softmaxes"]),
            cell.get("chance", ""),
        ]
        for setting, cells in store.cells.items()
        for depth, cell in cells.items()
    ]
    rows.sort(key=lambda row: row[1])
    own = store.config
    outputs = sum(cell["beyond_output"] for row in store.cells.values() for cell in row.values())
    about = (
        f"{own['model']}, WikiText-2: the {own['tokens']} tokens after evenly spread parts of the "
        "text, every softmax audited. Bytes are over those of exact attention to a bfloat16 cache; "
        "keys and values are bfloat16 or the type after `@`. 'Within': the share of softmaxes "
        f"whose bound is at most {WITHIN:.2f}. 'Beyond': softmaxes further away than their bound; "
        "'chance': how probable as many would be if each were with the probability that it may. "
        f"Outputs beyond their own bound: {outputs}."
    )
    head = ["setting", "depth", "softmaxes", "bytes read", "bound, median", "bound, 99 %"]
    head += ["distance, median", "distance, 99 %", "bound / distance, median"]
    head += [f"within {WITHIN:.2f}", "beyond", "allowed", "chance"]
    return "\n\n".join(["## Bounds of `tiers`", about, markdown(head, rows)])


def main() -> int:
    """Measure, store and print."""
    return script.printed(NAME, lambda: table(run(options())))


if __name__ == "__main__":
    sys.exit(main())
