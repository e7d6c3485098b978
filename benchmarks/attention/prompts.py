"""Prompts by techniques that change them (`tiers:prompt=`, `exaq:prefill=true`): time and effect.

    python -m benchmarks.attention.prompts --data-dir DIR            times, two minutes
    python -m benchmarks.attention.prompts --data-dir DIR --quality  perplexity, half an hour
    ... --settings tiers:eps=0,skip=0,prompt=0.1                     only this one
    ... --settings exaq:bits=2,prefill=true --calibration FILE       of `suffice calibrate`
    ... --quick                                                      tiny sizes, into build/

Times: prompts of WikiText-2 are run by exact attention and by each setting in turn, ROUNDS times; a
ratio is the median of exact attention's time over the setting's in the same round. Quality: all but
the last tokens of a window are a prompt; the setting runs it and decodes the last tokens, which are
compared with those by exact attention. `tiers` decodes exactly with `eps=0,skip=0`. Each cell is
stored as soon as it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from pathlib import Path, PurePath
from typing import Any

from benchmarks.harness import record, script, settings
from benchmarks.harness.shared_prompts import of_calibrations, set_calibrations
from benchmarks.harness.tables import CellStore, markdown
from suffice import native
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.protocol import Tokenizer
from suffice.engine.runner import Runner
from suffice.eval.perplexity import PerplexityPlan, measure, windows_of
from suffice.eval.texts import described, load_text
from suffice.progress import counting_bar

NAME, EXACT = "prompts", "exact"
LENGTHS, ROUNDS = (2048, 4096, 8190), 3
WINDOW, FOLLOWING, LIMIT = 8192, 512, 6
SETTINGS = tuple(f"tiers:eps=0,skip=0,prompt={share}" for share in (0.01, 0.02, 0.03, 0.05))


def runners_of(base: Runner, flags: argparse.Namespace) -> dict[str, Runner]:
    """Return a runner of the same weights for each setting, exact attention first.

    Raises:
        InputError: A setting that cannot be used, or a calibration of another model.
    """
    asked = list(dict.fromkeys([EXACT, *flags.settings]))
    techniques = settings.required(flags.model, asked, calibration=flags.calibration)
    return settings.runners(base, techniques)


def seconds_of(runner: Runner, tokens: list[int]) -> float:
    """Return how long a prompt takes."""
    sequence = runner.open("prompt", len(tokens) + 1)
    began = time.perf_counter()
    runner.prefill(sequence, tokens)
    seconds = time.perf_counter() - began
    runner.close(sequence)
    return seconds


def timed(runners: dict[str, Runner], tokens: list[int], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the time of each setting, the ratio of exact attention's to it, and what was read."""
    seconds: dict[str, list[float]] = {setting: [] for setting in runners}
    with counting_bar() as bar:
        line = bar.add_task(f"{len(tokens)} tokens", total=rounds * len(runners))
        for _ in range(rounds):
            for setting, runner in runners.items():
                seconds[setting].append(seconds_of(runner, tokens))
                bar.update(line, advance=1)
    return {
        setting: {
            "seconds": statistics.median(own),
            "ratio": statistics.median(
                before / after for before, after in zip(seconds[EXACT], own, strict=True)
            ),
            "read": share_read(runners[setting]),
        }
        for setting, own in seconds.items()
    }


def share_read(runner: Runner) -> float:
    """Return the share of the keys that prompts have read since the last call."""
    trace = runner.trace
    read, held = trace.tile_rows_read, trace.tile_rows_held
    trace.tile_rows_read = trace.tile_rows_held = 0
    return read / held if held else 1.0


def quality(runner: Runner, exact: Runner, windows: list[list[int]], plan: PerplexityPlan) -> Any:
    """Return what a setting changes of the tokens that follow a prompt."""
    tally = None
    with counting_bar() as bar:
        line = bar.add_task("tokens", total=len(windows) * plan.predictions)
        for tally in measure(runner, windows, plan, exact):
            bar.update(line, completed=tally.predictions)
    assert tally is not None, "there are windows"
    against = tally.result().against
    assert against is not None, "it was compared"
    return dataclasses.asdict(against) | {"read": share_read(runner)}


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--text", default="wikitext2", help="wikitext2, or a file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--calibration", help="of the model; default: next to it, if needed")
    parser.add_argument("--quality", action="store_true", help="measure perplexity, no times")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--limit", type=int, default=LIMIT, help="windows of --quality")
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--quick", action="store_true", help="tiny sizes, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    flags.window, flags.following, flags.rounds = WINDOW, FOLLOWING, ROUNDS
    if flags.quick:
        flags.window, flags.following, flags.rounds, flags.limit = 1200, 20, 1, 1
        flags.lengths = [1100]
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def run(flags: argparse.Namespace) -> CellStore:
    """Measure what was asked for, storing each cell.

    Raises:
        InputError: A model, text or setting that cannot be used.
    """
    text = load_text(flags.text, flags.data_dir)
    longest = max(flags.window, *flags.lengths)
    config = Config.create(flags.model, max_model_len=longest, threads=flags.threads)
    _, base, tokenizer = load(config)
    runners = runners_of(base, flags)
    plan = PerplexityPlan(flags.window, flags.limit, prompt=flags.window - flags.following)
    windows = windows_of(tokenizer, text, plan, longest)
    shown = {"model": PurePath(flags.model).name, "window": flags.window, "prompt": plan.prompt}
    shown |= {"evaluated": described(Path(flags.text).name, text, windows)}
    store = CellStore(flags.out, NAME, shown, record.facts(), table)
    store.read()
    configs = {setting: runner.config for setting, runner in runners.items()}
    set_calibrations(store, configs, flags.calibration)
    if flags.quality:
        _store_quality(store, runners, windows, plan)
    else:
        _store_times(store, runners, tokenizer, text, flags)
    store.write()
    return store


def _store_quality(
    store: CellStore, runners: dict[str, Runner], windows: list[list[int]], plan: PerplexityPlan
) -> None:
    for setting, runner in runners.items():
        if setting != EXACT and "quality" not in store.cells.get(setting, {}):
            store.keep(setting, "quality", quality(runner, runners[EXACT], windows, plan))


def _store_times(
    store: CellStore,
    runners: dict[str, Runner],
    tokenizer: Tokenizer,
    text: str,
    flags: argparse.Namespace,
) -> None:
    tokens = tokenizer.encode(text)
    for length in flags.lengths:
        for setting, cell in timed(runners, tokens[:length], flags.rounds).items():
            store.keep(setting, str(length), cell)


def table(store: CellStore) -> str:
    """Return the tables of times and of quality."""
    times, changes = [], []
    for setting, cells in store.cells.items():
        for length, cell in cells.items():
            if length != "quality":
                row = [int(length), f"`{setting}`", cell["read"], cell["seconds"], cell["ratio"]]
                times.append(row)
        if "quality" in cells:
            changes.append(_changed(setting, cells["quality"]))
    own = store.config
    about = (
        f"{own['model']}, WikiText-2. Perplexity and KL are of the {own['window'] - own['prompt']} "
        f"tokens after prompts of {own['prompt']}, {own['evaluated']['windows']} windows, and are "
        "compared with exact attention's. A setting also decodes these tokens: `tiers` exactly, "
        "because of `eps=0,skip=0`. A ratio is of one run; seconds may be of another."
        f"{of_calibrations(store, by_row=True)}"
    )
    head = ["tokens", "setting", "keys read", "seconds", "exact / this"]
    second = ["setting", "keys read", "perplexity", "KL mean", "KL 99.9 %", "same token"]
    times.sort(key=lambda row: row[0])
    parts = ["## Prompts by techniques", about, markdown(head, times), markdown(second, changes)]
    return "\n\n".join(parts)


def _changed(setting: str, cell: dict[str, Any]) -> list[Any]:
    error = cell["ratio_error"]
    change = f"{100 * (cell['ratio'] - 1):+.2f}" + (f" ± {100 * error:.2f}" if error else "") + " %"
    figures = [cell[name] for name in ("divergence", "divergence_999", "agreement")]
    return [f"`{setting}`", cell["read"], change, *figures]


def main() -> int:
    """Measure, store and print."""
    return script.printed(NAME, lambda: table(run(options())))


if __name__ == "__main__":
    sys.exit(main())
