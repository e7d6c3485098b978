"""Thresholds by head, as calibrations have them, and the same for all heads: what they read and
what they change.

    suffice calibrate --text FILE --budget 0.3% --attention tiers -ctk planes ... -o both.json
    suffice calibrate ... --attention tiers:skip=0.0002 ... -o eps.json
    suffice calibrate --text FILE --budget 0.3% --attention art:block=16,order=sketch -o art.json
    python -m benchmarks.attention.by_head --data-dir DIR both.json eps.json art.json    an hour
    ... --quick                                                                     into build/

Keys and values are in planes for `tiers`, and in the model's own type for others. All tokens of
WikiText-2's windows are decoded, and compared with exact attention to keys and values in the
model's own type. Each row is stored as soon as it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path, PurePath
from typing import Any

from benchmarks.attention.quality import bytes_of
from benchmarks.attention.quality_table import change_with_error
from benchmarks.harness import record, script, settings
from benchmarks.harness.shared_prompts import of_calibrations, set_calibrations
from benchmarks.harness.tables import CellStore, markdown
from suffice.attention import ATTENTIONS
from suffice.attention.calibration import parts, read
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, measure, windows_of
from suffice.eval.texts import described, load_text
from suffice.progress import counting_bar

NAME, EXACT, PLANES = "by_head", "exact", " @ planes"
WINDOW, LIMIT = 2048, 8
SETTINGS = (
    "tiers:eps=0.2,skip=0.0001",
    "tiers:eps=0.3,skip=0.00005",
    "tiers:eps=0.3,skip=0.0001",
    "tiers:eps=0.5,skip=0.0002",
    "tiers:eps=0.7,skip=0.0002",
    "tiers:eps=0.7,skip=0.0005",
    "tiers:eps=0.8,skip=0.0007",
    "art:change=5e-3,block=16,order=sketch",
    "art:change=1e-2,block=16,order=sketch",
    "art:change=2e-2,block=16,order=sketch",
)


def technique_of(path: Path) -> str:
    """Return the technique whose thresholds a calibration has.

    Raises:
        InputError: The file is no calibration, or not of one technique.
    """
    found = list(read(path).attention)
    if len(found) != 1:
        raise InputError(
            f"{path}: has thresholds of {' and '.join(found) or 'no technique'}, one is compared: "
            "make it with `suffice calibrate --budget -o`"
        )
    return found[0]


def name_of(path: Path) -> str:
    """Return what a calibration finds for each head, and what it has for all, as a row's name.

    Raises:
        InputError: The file is no calibration, or not of one technique.
    """
    name = technique_of(path)
    own, budget = read(path).attention[name].options, parts(path)["attention"][name]["budget"]
    technique = ATTENTIONS.load(name)
    by_head = " and ".join(each for each in technique.ladders if each not in own)
    for_all = "".join(
        f", {each}={value}"
        for each, value in own.items()
        if each in technique.ladders or value != getattr(technique, each)
    )
    return f"{by_head} of {name} by head{for_all}, budget {100 * budget:g} %"


def stored(setting: str) -> str:
    """Return a setting with the type of its keys and values."""
    return setting + (PLANES if setting.startswith("tiers:") else "")


def asked(flags: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the techniques of each row, exact attention first.

    Raises:
        InputError: A setting or a calibration that cannot be used.
    """
    found = settings.required(flags.model, [EXACT, *map(stored, flags.settings)])
    for path in flags.calibrations:
        setting = stored(f"{technique_of(path)}:calibrated")
        if (name := name_of(path)) in found:
            raise InputError(f"{path}: another file has the same row, '{name}'")
        found[name] = settings.required(flags.model, [setting], calibration=path)[setting]
    return found


def measured(
    exact: Runner, runner: Runner, windows: list[list[int]], plan: PerplexityPlan
) -> dict[str, Any]:
    """Return what a runner reads of windows, over exact attention's bytes, and what it changes."""
    tally, before = None, runner.trace.copy()
    with counting_bar() as bar:
        line = bar.add_task("tokens", total=len(windows) * plan.predictions)
        for tally in measure(runner, windows, plan, exact):
            bar.update(line, completed=tally.predictions)
    assert tally is not None, "there are windows"
    against, read = tally.result().against, runner.trace.since(before)
    assert against is not None, "it was compared"
    share = read.kv_bytes_read / read.kv_bytes_held
    return dataclasses.asdict(against) | {"bytes": share * bytes_of(runner) / bytes_of(exact)}


def table(store: CellStore) -> str:
    """Return the results as a table."""
    own = store.config
    windows = "{windows} windows of {window} tokens".format(**own["evaluated"])
    name = own["evaluated"]["name"]
    text = "WikiText-2" if name == "wikitext2" else name
    about = (
        f"{own['model']}, {text}, {windows}, keys and values of tiers in planes, of others in "
        "bfloat16. Bytes are over those that exact attention reads of bfloat16."
        f"{of_calibrations(store, by_row=True)}"
    )
    head = ["setting", "bytes read", "perplexity", "KL mean", "KL 99.9 %", "same token"]
    found = []
    for name, cells in store.cells.items():
        cell = cells["windows"]
        shown = name if " by head" in name else f"`{name}`"
        figures = [cell[each] for each in ("divergence", "divergence_999", "agreement")]
        found.append([shown, cell["bytes"], change_with_error(cell), *figures])
    return "\n\n".join(["## Thresholds by head", about, markdown(head, found)])


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Thresholds by head and for all heads.")
    parser.add_argument("calibrations", nargs="*", type=Path, help="files of suffice calibrate")
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--text", default="wikitext2", help="wikitext2, or a file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), help="of all heads")
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--limit", type=int, default=LIMIT, help="windows")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="a short window, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.window, flags.limit, flags.settings = 128, 1, flags.settings[:1]
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def run(flags: argparse.Namespace) -> CellStore:
    """Measure what has no result, storing each row; return all.

    Raises:
        InputError: A model, a text, a setting, a calibration or results that cannot be used.
    """
    techniques = asked(flags)
    config = Config.create(flags.model, max_model_len=flags.window, threads=flags.threads)
    _, base, tokenizer = load(config)
    plan, text = PerplexityPlan(flags.window, flags.limit), load_text(flags.text, flags.data_dir)
    windows = windows_of(tokenizer, text, plan, flags.window)
    shown = {"model": PurePath(flags.model).name}
    shown |= {"evaluated": described(Path(flags.text).name, text, windows)}
    store = CellStore(flags.out, NAME, shown, record.facts(), table)
    store.read()
    runners = settings.runners(base, techniques)
    exact, files = runners.pop(EXACT), {name_of(path): str(path) for path in flags.calibrations}
    for name, runner in runners.items():
        set_calibrations(store, {name: runner.config}, files.get(name))
        if name not in store.cells:
            store.keep(name, "windows", measured(exact, runner, windows, plan))
    return store


def main() -> int:
    """Measure, store and print."""
    return script.printed(NAME, lambda: table(run(options())))


if __name__ == "__main__":
    sys.exit(main())
