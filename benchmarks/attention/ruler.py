"""RULER's needle tasks under every technique: scores and bytes read.

    python -m benchmarks.attention.ruler                     SmolLM2, lengths 1024 and 2048, an hour
    python -m benchmarks.attention.ruler --model gemma3-270m the same of Gemma 3
    python -m benchmarks.attention.ruler --tasks niah_single_1 --lengths 4096 --settings exact art
    ... --lengths 4096 8192 --device cuda                    prompts by PyTorch on a GPU
    ... --calibration FILE                                   of `suffice calibrate`, for exaq
    python -m benchmarks.attention.ruler --quick             a sample of one task, into build/

For each task and length, exact attention answers first. If it scores below 80 %, the task does not
count: the table lists the score, and no technique is run. Otherwise every technique answers, on the
same prompts, which are run once. The question is part of the prompt that a policy selects from.
Each cell is stored as soon as it is measured; it is measured again if more samples are asked for.
Published scores are for another, larger model.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import record, script, shared_prompts
from benchmarks.harness.tables import Cell, CellStore, markdown
from suffice.engine.llm import LLM
from suffice.errors import unknown
from suffice.eval.ruler import TASKS, RulerPlan, check, measure
from suffice.progress import progress_bar

NAME = "ruler"
COUNTS = 80.0  # score of exact attention, in per cent, from which a task counts
TOGETHER = 10  # samples that decode together
LOOSE = "art:change=1e-2"  # with the paper's threshold, groups of these models' heads seldom stop
POLICIES = ("snapkv", "pyramidkv", "streaming", "h2o", "quest")
BUDGETS = tuple(f"{policy}:ratio={ratio}" for policy in POLICIES for ratio in (0.8, 0.5, 0.2))
# They need a calibration.
CODED = ("exaq:bits=3", "exaq:bits=3,clip=fit", "exaq_km:bits=3", "exaq:bits=2", "exaq_km:bits=2")
SETTINGS = (
    "exact",
    "aet:keys=all,values=0.001",
    "aet:keys=0.95",
    "aet:keys=0.9",
    "art",
    "art:change=1e-3",
    LOOSE,
    f"{LOOSE},block=16,order=sketch",
    "certified:eps=0.05",
    "certified:bounded=false,eps=0.25,values=0.002",
    "tiers:eps=0.5,skip=0.0002",
    *CODED,
    *BUDGETS,
    "pyramidkv:ratio=0.5,window=32",  # a window of 128 is four times as long as the question
    "snapkv:ratio=0.5 + art",
    "pyramidkv:ratio=0.5 + art",
    "streaming:ratio=0.5 + art",
    *(f"{policy} + {LOOSE}" for policy in BUDGETS),
    f"snapkv:rank_only=true + {LOOSE}",
    f"streaming:rank_only=true + {LOOSE}",
    f"quest:rank_only=true + {LOOSE}",
    "snapkv:ratio=0.5 + certified:eps=0.05",
)
# ART, Table 2: per cent over all eight tasks at 4096 / 32768 tokens, Qwen3-8B. Its text does not
# state the policies' budget.
PUBLISHED = {
    "exact": "99.95 / 99.34",
    "art": "89.11 / 78.65",
    LOOSE: "89.11 / 78.65",
    "snapkv:ratio=0.5": "92.65 / 99.37",
    "snapkv:ratio=0.5 + art": "92.73 / 95.68",
    f"snapkv:ratio=0.5 + {LOOSE}": "92.73 / 95.68",
    "streaming:ratio=0.5": "80.13 / 77.78",
    "streaming:ratio=0.5 + art": "80.25 / 75.81",
    f"streaming:ratio=0.5 + {LOOSE}": "80.25 / 75.81",
    "pyramidkv:ratio=0.5": "90.09 / 99.24",
    "pyramidkv:ratio=0.5 + art": "90.72 / 96.00",
    f"pyramidkv:ratio=0.5 + {LOOSE}": "90.72 / 96.00",
}


def weights_of(engine: dict[str, Any]) -> str:
    """Return what an engine's weights are, for a table's text."""
    if engine["quant"].startswith("AsStored"):
        return "weights as the file has them"
    return f"{engine['dtype']} weights"


def answered(llm: LLM, plan: RulerPlan) -> Iterator[tuple[int, Cell | None]]:
    """Ask a plan's questions; yield how many are answered, with the cell at the end."""
    before, tally = llm.runner.trace.copy(), None
    for tally in measure(llm, plan):
        yield len(tally.answers), None
    assert tally is not None, "a plan has samples"
    score, reads = tally.result().scores[0], llm.runner.trace.since(before)
    yield (
        score.samples,
        {
            "score": score.score,
            "error": score.error,
            "samples": score.samples,
            "steps": reads.steps,
            "kv_bytes_read": reads.kv_bytes_read,
            "kv_bytes_held": reads.kv_bytes_held,
            "key_rows": reads.key_fraction,
            "value_rows": reads.value_fraction,
        },
    )


def run(
    store: CellStore, llms: dict[str, LLM], prompts: shared_prompts.Prompts, plans: list[RulerPlan]
) -> None:
    """Measure missing cells, by task and length, exact attention first."""
    columns = ("{task.description}", "{task.completed}/{task.total} samples")
    with progress_bar(*columns) as bar:
        line = bar.add_task("", total=None)
        for plan in plans:
            place = place_of(plan)
            for setting, llm in llms.items():
                done = store.cells.get(place, {})
                if done.get(setting, {"samples": 0})["samples"] >= plan.samples:
                    continue
                if setting != "exact" and done["exact"]["score"] < COUNTS:
                    continue
                bar.reset(line, description=f"{place} {setting}", total=plan.samples)
                for count, cell in answered(llm, plan):
                    bar.update(line, completed=count)
                    if cell is not None:
                        store.keep(place, setting, cell)
            prompts.forget()


def place_of(plan: RulerPlan) -> str:
    """Return the name of a plan's task and length."""
    return f"{plan.tasks[0]} at {plan.lengths[0]}"


def share(cells: list[Cell], exact: list[Cell]) -> float:
    """Return the share of held bytes that is read, over exact attention's share.

    Shares are compared because answers differ in length. Exact attention's share is below 1 in
    layers with a sliding window.
    """
    read, whole = (
        sum(cell["kv_bytes_read"] for cell in each) / sum(cell["kv_bytes_held"] for cell in each)
        for each in (cells, exact)
    )
    return read / whole


def same_samples(cells: dict[str, Cell], setting: str) -> Cell | None:
    """Return a setting's cell if it answered the same samples as exact attention."""
    cell = cells.get(setting)
    return cell if cell and cell["samples"] == cells["exact"]["samples"] else None


def mean_score(cells: list[Cell]) -> str:
    """Return the mean score of a setting's cells with its standard error."""
    score = statistics.fmean(cell["score"] for cell in cells)
    error = math.hypot(*(cell.get("error") or 0.0 for cell in cells)) / len(cells)
    return f"{score:.1f} ± {error:.1f}"


def row(store: CellStore, places: list[str], setting: str) -> list[Any]:
    """Return a setting's row: mean score and bytes of the tasks that count, then each task."""
    if setting in store.refused:
        return [f"`{setting}`", f"refused: {store.refused[setting]}", *[""] * (len(places) + 3)]
    exact = [store.cells[place]["exact"] for place in places]
    cells = [same_samples(store.cells[place], setting) for place in places]
    each = [
        f"{cell['score']:.0f} ({share([cell], [whole]):.2f})" if cell else ""
        for cell, whole in zip(cells, exact, strict=True)
    ]
    found = [cell for cell in cells if cell]
    # Only a mean over exact attention's tasks can be compared with it.
    means = ["", "", ""]
    if len(found) == len(cells):
        score, best = (statistics.fmean(c["score"] for c in each) for each in (found, exact))
        means = [mean_score(found), f"{score - best:+.1f}", f"{share(found, exact):.3f}"]
    return [f"`{setting}`", *means, *each, PUBLISHED.get(setting, "")]


def in_order(store: CellStore, settings: Sequence[str]) -> list[str]:
    """Return the settings that were measured or refused, in the order of `settings`.

    Their options may have names of before.
    """
    place = {setting: at for at, setting in enumerate(settings)}
    measured = (setting for cells in store.cells.values() for setting in cells)
    found = dict.fromkeys((*measured, *store.refused))
    return sorted(found, key=lambda setting: place.get(setting, len(place)))


def table(store: CellStore) -> str:
    """Return the results as text and tables: the tasks that count, and those that do not."""
    ordered = sorted(store.cells, key=lambda place: (int(place.rpartition(" ")[2]), place))
    counting = [p for p in ordered if store.cells[p]["exact"]["score"] >= COUNTS]
    other = [p for p in ordered if p not in counting]
    config = store.config
    about = (
        f"{config['model']}, {weights_of(config)}, {config['kv_cache_dtype']} keys and "
        "values, greedy answers. A cell is the score in per cent, and in brackets the bytes of "
        "keys, values and metadata read over those that exact attention reads. `A + B` is "
        "attention B over policy A. A policy sees the question with the text. A cell that is empty "
        "was not measured; a score is the mean of a setting that has all, with its standard error."
        f"{shared_prompts.sentence(store)}"
    )
    head = ["setting", "score", "against exact", "bytes read"]
    sizes = {p: store.cells[p]["exact"]["samples"] for p in store.cells}
    head += [f"{p} (n = {sizes[p]})" for p in counting] + ["ART, Table 2, 4K / 32K"]
    settings = in_order(store, SETTINGS)
    rows = [row(store, counting, setting) for setting in settings] if counting else []
    text = [f"## RULER's needles: {config['model']}", about, markdown(head, rows)]
    if other:
        lost = [[p, store.cells[p]["exact"]["score"], sizes[p]] for p in other]
        text += [f"Not solved to {COUNTS:.0f} % by exact attention, which does not count:"]
        text += [markdown(["task", "score of `exact`", "samples"], lost)]
    return "\n\n".join(text)


def options() -> argparse.Namespace:
    """Return the parsed flags."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="TASK")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--samples", type=int, default=10, help="of each task and length")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--threads", type=int)
    shared_prompts.add_options(parser)
    parser.add_argument("--quick", action="store_true", help="a sample of one task, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.tasks, flags.lengths, flags.samples = flags.tasks[:1], flags.lengths[:1], 1
    for task in flags.tasks:
        if task not in TASKS:
            raise unknown("task", task, tuple(TASKS))
    flags.out = flags.out or (Path("build") if flags.quick else record.results(__file__))
    return flags


def measured(flags: argparse.Namespace) -> CellStore:
    """Measure the cells without a result, storing each at once; return all results.

    Raises:
        InputError: Plans, settings or results that cannot be used.
    """
    plans = [
        RulerPlan([task], [length], flags.samples, together=TOGETHER)
        for length in flags.lengths
        for task in flags.tasks
    ]
    store, llms, prompts = shared_prompts.opened(flags, NAME, max(flags.lengths), table)
    exact = llms["exact"]
    for plan in plans:
        check(plan, exact.tokenizer, exact.config.max_model_len or 0)
    run(store, llms, prompts, plans)
    store.write()
    return store


def main() -> int:
    """Measure and print the tables."""
    return script.printed(NAME, lambda: table(measured(options())))


if __name__ == "__main__":
    sys.exit(main())
