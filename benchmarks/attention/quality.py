"""Measures the quality of techniques and the bytes that decode steps read, on WikiText-2.

    python -m benchmarks.attention.quality --data-dir DIR               ways to attend
    python -m benchmarks.attention.quality --data-dir DIR --prompt 1536 policies, which choose from
                                                                        a prompt, and some of these
    python -m benchmarks.attention.quality --data-dir DIR --calibration FILE
                                                                        softmaxes by codes
    python -m benchmarks.attention.quality --data-dir DIR --stored      types of keys and values,
                                                                        and tiers
    python -m benchmarks.attention.quality --data-dir DIR --quick       tiny sizes, into build/
    python -m benchmarks.attention.quality --plot                       bytes and quality, a plot
    ... --model gemma3-270m --limit 2, --window 8192 --limit 1, --settings aet:keys=0.8

Each command measures the settings without a result, a minute or two each on two cores, and stores
a record of each, in the form of `suffice eval perplexity --against exact`. The reference and the
prompts are run once. `exact @ int8` keeps keys and values in int8; bytes are over what exact
attention reads of a cache in the model's own type. Thresholds are those of the papers and a few of
ours. Published figures, for other and larger models, are listed with ours. The table lists
combinations that the engine refuses.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.attention.quality_table import conditions, points, table
from benchmarks.harness import record, script, shared_prompts
from benchmarks.harness.settings import accepted
from suffice.cache import row_bytes, types_of
from suffice.cli.eval.options import PerplexityFlags
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, Scores, scored, tallied, windows_of
from suffice.eval.record import settings as settings_of
from suffice.eval.texts import line_ends, load_text
from suffice.progress import progress_bar

MODEL, WINDOW, LIMIT = "smollm2-135m", 2048, 20
CODED_WINDOW, CODED_LIMIT = 1024, 16
OTHER_LIMIT = 8  # windows of policies and of types of keys and values
SMALL = "certified:bounded=false,eps=0.25,values=0.002"
LOOSE = "art:change=1e-2"
SETTINGS = (
    "exact",
    "aet:keys=all,values=0.001",
    "aet:keys=0.95",
    "aet:keys=0.9",
    "aet:keys=0.8",
    *(f"aet:keys={keys},block=1" for keys in (0.95, 0.9, 0.8)),  # token by token, as in the paper
    "aet:keys=0.6,values=0.005,block=1",
    "art",
    "art:change=1e-3",
    "art:change=1e-2",
    "aet:keys=0.9,order=sketch",
    "art:change=1e-2,block=16,order=sketch",
    "art:change=1e-2,block=16,values=0.002,order=sketch",
    "art:change=2e-2,block=16,values=0.002,order=sketch",
    "skip_softmax:factor=3",
    "skip_softmax",
    "certified:eps=0.05",
    SMALL,
    "certified:bounded=false,eps=0.3,values=0.002",
    "certified:bounded=false,eps=0.3,values=0.005",
    "certified:bounded=false,eps=0.4,values=0.005",
)
BUDGETED = (
    "exact",
    "aet:keys=all,values=0.001",
    "aet:keys=0.9",
    "art:change=1e-2",
    "certified:eps=0.05",
    SMALL,
    *(
        f"{policy}:ratio={ratio}"
        for policy in ("snapkv", "pyramidkv", "quest", "streaming", "h2o")
        for ratio in (0.8, 0.5, 0.2)
    ),
    *(
        f"{policy}:ratio=0.5 + {art}"
        for policy in ("snapkv", "pyramidkv")
        for art in ("art", LOOSE)
    ),
    "quest:ratio=0.5 + aet:keys=all,values=0.001",
    "snapkv:ratio=0.5 + aet:keys=all,values=0.001",
    "snapkv:rank_only=true + art:change=1e-2",
    "quest:rank_only=true + art:change=1e-2",
    "quest:ratio=0.5 + certified:eps=0.05",
    "certified:bounded=false,eps=0.3,values=0.002",
    *(f"tiers:eps={eps},skip=0.0002" for eps in (0.5, 0.6, 1)),
    "tiers:eps=0.8,skip=0.0007",
)
CODED = (
    "exaq:bits=2",
    "exaq:bits=3",
    "exaq_km:bits=2",
    "exaq_km:bits=3",
    "exaq:bits=4",
    "exaq:bits=3,clip=minmax",
    "exaq:bits=2,clip=minmax",
    "exaq:bits=2,tail=flush",
    "exaq:bits=3,clip=solve",
    "exaq:bits=2,clip=solve",
    "exaq:bits=3,clip=solve,keys=1",
    "exaq:bits=2,clip=solve,keys=1",
    "exaq:bits=3,clip=fit",
    "exaq:bits=2,clip=fit",
    "exaq:bits=2 + aet:keys=0.9",
    "exaq:bits=3 + aet:keys=0.9",
    "exaq:bits=4 + aet:keys=0.9",
    "exaq:bits=3 + art:change=1e-2",
    "exaq:bits=3 + certified:eps=0.05",
)
STORED = (
    "exact",
    "exact @ int8",
    "exact @ planes",
    "tiers:eps=0.5,skip=0.0002 @ planes",
    "tiers:eps=0.7,skip=0.0002 @ planes",
    "tiers:eps=0.8,skip=0.0007 @ planes",
    "tiers:eps=1,skip=0.0002 @ planes",
    "tiers:bounded=true,eps=0.1,skip=0.00001 @ planes",
    "tiers:eps=0.5,skip=0.0002",
    "tiers:eps=0.6,skip=0.0002",
    "tiers:eps=0.8,skip=0.0007",
    "exact @ kmeans4",
    SMALL,
)
AUDIT = 16  # steps between two audits: a dozen rows each, in some hundred steps
PLOT = "quality"
QUICK_WINDOW = 64
BY_HEAD = ("key_rows_read", "value_rows_read", "value_rows_alone", "rows_held")
PANELS = ("quality", "quality_policies")  # results that are plotted


def name_of(flags: argparse.Namespace) -> str:
    """Return the name of the result's files: the kind; model and window unless the defaults."""
    kinds = {
        "softmax": flags.calibration,
        "policies": flags.prompt,
        "stored": flags.stored,
    }
    what = [kind for kind, asked in kinds.items() if asked][:1]
    model = Path(flags.model).name
    usual = CODED_WINDOW if flags.calibration else WINDOW
    others = [model] * (model != MODEL) + [str(flags.window)] * (flags.window != usual)
    return "_".join(["quality", *what, *others])


def kept(runner: Runner, windows: list[list[int]], plan: PerplexityPlan) -> list[Scores]:
    """Return the scores of exact attention, the reference of every setting."""
    found = []
    with progress_bar("{task.description}", "{task.completed}/{task.total} tokens") as bar:
        line = bar.add_task("exact", total=plan.predictions * len(windows))
        for scores in scored(runner, windows, plan):
            found.append(scores)
            bar.update(line, advance=len(scores.targets))
    return found


def compared(
    setting: str, found: Iterable[Scores], expected: list[Scores], windows: int
) -> dict[str, Any]:
    """Return the figures of one setting's scores, compared with exact attention."""
    tally = None
    columns = ("{task.description}", "{task.completed}/{task.total} tokens")
    with progress_bar(*columns, "perplexity {task.fields[perplexity]:.3f}") as bar:
        total = sum(len(scores.targets) for scores in expected)
        line = bar.add_task(setting, total=total, perplexity=0.0)
        for tally in tallied(found, expected, windows):
            bar.update(line, completed=tally.predictions, perplexity=tally.perplexity)
    assert tally is not None, "there are windows"
    return dataclasses.asdict(tally.result())


def options() -> argparse.Namespace:
    """Return the parsed flags."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--settings", nargs="+")
    parser.add_argument("--calibration", help="of the model: measure softmaxes by codes")
    parser.add_argument("--prompt", type=int, default=0, help="tokens of a window run as a prompt")
    parser.add_argument("--stored", action="store_true", help="types of keys and values")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--window", type=int)
    parser.add_argument("--limit", type=int, help="windows")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--plot", action="store_true", help="plot stored results, measure nothing")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    window, limit = (CODED_WINDOW, CODED_LIMIT) if flags.calibration else (WINDOW, LIMIT)
    if flags.prompt or flags.stored:
        limit = OTHER_LIMIT
    flags.window = flags.window or (QUICK_WINDOW if flags.quick else window)
    flags.limit = flags.limit or (1 if flags.quick else limit)
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    if not flags.settings:
        usual = STORED if flags.stored else SETTINGS
        whole = CODED if flags.calibration else BUDGETED if flags.prompt else usual
        flags.settings = list(whole[:3] if flags.quick else whole)
    return flags


def asked_of(flags: argparse.Namespace, text: str) -> dict[str, Any]:
    """Return the request in the form that `suffice eval perplexity` records."""
    asked = PerplexityFlags(
        window=flags.window, limit=flags.limit, prompt=flags.prompt or None, against="exact"
    )
    return dataclasses.asdict(asked) | {
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "text_line_ends": line_ends(text),
    }


def before(path: Path, flags: argparse.Namespace) -> dict[str, Any]:
    """Return the file's content, or an empty one, with the facts common to all records.

    Raises:
        InputError: The file has other windows or another calibration, or there is no calibration.
    """
    try:
        calibration = flags.calibration and Path(flags.calibration).read_bytes()
    except OSError as error:
        raise InputError(f"--calibration {flags.calibration}: {error.strerror}") from error
    common = {"window": flags.window, "limit": flags.limit, "prompt": flags.prompt}
    common["calibration"] = hashlib.sha256(calibration).hexdigest() if calibration else None
    if not path.exists():
        return record.facts() | {"common": common, "records": {}, "refused": {}}
    data: dict[str, Any] = json.loads(path.read_text())
    if data["common"] != common:
        raise InputError(
            f"{path} is of {data['common']}, not of {common}: give another folder with --out"
        )
    return data


def run(flags: argparse.Namespace) -> str:
    """Measure the settings without a result, storing each at once; return the table.

    Raises:
        InputError: A text, a model or a setting that cannot be used.
    """
    path = flags.out / f"{name_of(flags)}.json"
    data = before(path, flags)
    missing = [setting for setting in flags.settings if setting not in data["records"]]
    common = {"threads": flags.threads, "calibration": flags.calibration}
    techniques = accepted(flags.model, missing, data["refused"], **common)
    if techniques:
        data |= record.facts()
    details = record.read_details(flags.out, path.stem)
    for setting, found in measured(flags, techniques):
        details[setting], found["reads"] = by_head(found["reads"])
        data["records"][setting] = found
        record.write_details(flags.out, path.stem, details)
        record.write(flags.out, path.stem, data, table(data["records"], data["refused"]))
    if not data["records"]:
        raise InputError("; ".join(data["refused"].values()))
    drawn = table(data["records"], data["refused"])
    record.write(flags.out, path.stem, data, drawn)
    return drawn


def by_head(reads: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the counts of each layer and head [L][H], and the reads with means instead of counts.

    Means have the form of counts of one layer with one head, for the table and `suffice report`.
    """
    counts = {name: reads[name] for name in BY_HEAD if name in reads}
    means = {name: [[sum(map(sum, each)) / sum(map(len, each))]] for name, each in counts.items()}
    return counts, reads | means


def measured(
    flags: argparse.Namespace, techniques: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the record of each setting.

    Raises:
        InputError: A text, a model or a calibration that cannot be used, or policies without a
            prompt.
    """
    if not techniques:
        return
    plan = PerplexityPlan(flags.window, flags.limit, together=flags.limit, prompt=flags.prompt)
    for each in techniques.values():
        plan.check(each["policy"])
    text = load_text("wikitext2", flags.data_dir)
    config, base, tokenizer = load(
        Config.create(flags.model, threads=flags.threads, max_model_len=flags.window)
    )
    windows, facts = windows_of(tokenizer, text, plan, flags.window), record.facts()
    whole = accepted(flags.model, ["exact"], {}) | techniques
    runners, _ = shared_prompts.runners(config, base, whole)
    expected = kept(runners["exact"], windows, plan)
    for setting in techniques:
        runner = runners[setting]
        runner.audit = AUDIT if runner.config.leaves_out else None
        found = expected if setting == "exact" else scored(runner, windows, plan)
        yield (
            setting,
            facts
            | {
                "kind": "perplexity",
                "config": settings_of(runner.config),
                "asked": asked_of(flags, text),
                "interrupted": False,
                "result": compared(setting, found, expected, len(windows)),
                "reads": runner.trace.plain(),
                "plain_over_stored": bytes_of(base) / bytes_of(runner),
            },
        )


def bytes_of(runner: Runner) -> int:
    """Return the bytes of a key and a value as an engine keeps them."""
    size = runner.decoder.config.head_size
    return sum(row_bytes(dtype, size) for dtype in types_of(runner.config.kv_cache_dtype))


def draw(folder: Path) -> Path:
    """Plot quality against bytes for the stored results of `MODEL`; return the file."""
    panels = {}
    for name in PANELS:
        path = folder / f"{name}.json"
        if path.exists():
            records = json.loads(path.read_text())["records"]
            panels[conditions(records)] = points(records)
    if not panels:
        raise InputError(f"{folder} has none of {', '.join(PANELS)}: measure first")
    from benchmarks.harness import figures  # asks for matplotlib

    path = folder / f"{PLOT}.svg"
    figures.pareto(
        path,
        ("bytes of keys and values read, over exact attention's", "change of perplexity, %"),
        panels,
    )
    return path


def main() -> int:
    """Measure the settings without a result, or plot stored results."""
    flags = options()
    return script.printed("quality", lambda: str(draw(flags.out)) if flags.plot else run(flags))


if __name__ == "__main__":
    sys.exit(main())
