"""LongBench under every technique: scores, compared sample by sample, and bytes read.

    python -m benchmarks.attention.longbench --data-dir DIR           100 rows of multi_news, hours
    python -m benchmarks.attention.longbench --data-dir DIR --settings art "snapkv:ratio=0.5 + art"
    python -m benchmarks.attention.longbench --data-dir DIR --quick     a row, into build/
    ... --calibration FILE                                            of `suffice calibrate`

DIR has `longbench-<task>.jsonl`. All techniques answer the same prompts, which are run once. Each
group of samples is stored as soon as it is answered, and is not answered again. A difference from
exact attention is the mean over samples of the difference, with its standard error: what two
answers to one text have in common cancels. `--tasks` takes any of LongBench's tasks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attention import ruler
from benchmarks.harness import record, script, shared_prompts
from benchmarks.harness.tables import Cell, CellStore, markdown
from suffice.engine.llm import LLM
from suffice.eval.answers import standard_error
from suffice.eval.longbench import LongBenchPlan, Sample, groups, load_samples, measure
from suffice.progress import progress_bar

NAME = "longbench"
TOGETHER = 5  # samples whose prompts are in memory, once for each policy that decodes them
LENGTH = 8192
KEPT = [
    f"{name}:ratio={ratio}" for name in ("streaming", "snapkv", "pyramidkv") for ratio in (0.8, 0.2)
]
SETTINGS = tuple(dict.fromkeys((*ruler.SETTINGS, *KEPT, *(f"{each} + art" for each in KEPT))))
# ART, Table 7, Mistral-7B: mean scores of each kind of task, by share of the prompt that is kept.
KINDS = {
    "one text": ("narrativeqa", "qasper", "multifieldqa_en", "multifieldqa_zh"),
    "many texts": ("hotpotqa", "2wikimqa", "musique", "dureader"),
    "summaries": ("gov_report", "qmsum", "multi_news", "vcsum"),
    "few-shot": ("trec", "triviaqa", "samsum", "lsht"),
    "synthetic": ("passage_count", "passage_retrieval_en", "passage_retrieval_zh"),
    "code": ("lcc", "repobench-p"),
}
PUBLISHED = {
    "exact": (37.88, 34.65, 26.06, 63.43, 65.63, 63.56),
    "art": (37.20, 33.96, 26.40, 63.04, 64.85, 61.80),
    "streaming:ratio=0.8": (28.34, 27.61, 25.81, 62.27, 47.21, 64.16),
    "streaming:ratio=0.8 + art": (28.05, 27.34, 25.83, 62.42, 47.51, 63.52),
    "streaming:ratio=0.2": (20.04, 19.69, 22.71, 56.57, 18.20, 61.27),
    "streaming:ratio=0.2 + art": (19.98, 19.60, 22.70, 56.74, 18.20, 61.11),
    "snapkv:ratio=0.8": (33.13, 35.56, 26.33, 61.36, 64.67, 51.33),
    "snapkv:ratio=0.8 + art": (34.05, 31.76, 25.39, 59.62, 65.11, 53.45),
    "snapkv:ratio=0.2": (19.96, 19.35, 21.04, 46.78, 44.34, 46.49),
    "snapkv:ratio=0.2 + art": (19.77, 19.07, 21.07, 45.50, 44.09, 46.39),
    "pyramidkv:ratio=0.8": (37.02, 35.08, 26.04, 55.48, 56.25, 55.37),
    "pyramidkv:ratio=0.8 + art": (36.28, 35.02, 25.92, 53.96, 55.21, 55.77),
    "pyramidkv:ratio=0.2": (23.30, 30.31, 22.62, 47.54, 12.69, 49.18),
    "pyramidkv:ratio=0.2 + art": (23.50, 29.71, 22.70, 47.66, 12.92, 48.11),
}


def answered(llm: LLM, group: Sequence[Sample], length: int) -> Cell:
    """Return what a setting answers to a group of samples, and what it reads for it."""
    before = llm.runner.trace.copy()
    (tally,) = measure(llm, group, length, len(group))
    reads = llm.runner.trace.since(before)
    return {
        "scores": [answer.score for answer in tally.answers],
        "prompt_tokens": [answer.prompt_tokens for answer in tally.answers],
        "steps": reads.steps,
        "kv_bytes_read": reads.kv_bytes_read,
        "kv_bytes_held": reads.kv_bytes_held,
    }


def place_of(group: Sequence[Sample]) -> str:
    """Return the name of a group of samples: its task and the number of its first."""
    return f"{group[0].task} {group[0].index}"


def run(
    store: CellStore,
    llms: dict[str, LLM],
    prompts: shared_prompts.Prompts,
    samples: list[Sample],
    length: int,
) -> None:
    """Answer what has no answer yet, group by group, exact attention first."""
    asked = list(groups(samples, TOGETHER))
    columns = ("{task.description}", "{task.completed}/{task.total} groups")
    with progress_bar(*columns) as bar:
        line = bar.add_task("", total=len(asked) * len(llms))
        for group in asked:
            place = place_of(group)
            for setting, llm in llms.items():
                bar.update(line, description=f"{place} {setting}")
                done = store.cells.get(place, {}).get(setting, {"scores": ()})
                if len(done["scores"]) < len(group):
                    store.keep(place, setting, answered(llm, group, length))
                bar.advance(line)
            prompts.forget()


def row(store: CellStore, task: str, setting: str) -> list[Any] | None:
    """Return a setting's row: score, difference from exact attention and bytes, with errors.

    Only samples that exact attention has answered too count; None if there are none.
    """
    if setting in store.refused:
        return [f"`{setting}`", f"refused: {store.refused[setting]}", "", "", "", ""]
    pairs = [
        (cells[setting], cells["exact"])
        for place, cells in store.cells.items()
        if place.rpartition(" ")[0] == task
        and len(cells.get(setting, {"scores": ()})["scores"]) == len(cells["exact"]["scores"])
    ]
    if not pairs:
        return None
    own, exact = ([score for pair in pairs for score in pair[at]["scores"]] for at in (0, 1))
    beyond = [one - other for one, other in zip(own, exact, strict=True)]
    share = ruler.share([cell for cell, _ in pairs], [whole for _, whole in pairs])
    kind = next(at for at, tasks in enumerate(KINDS.values()) if task in tasks)
    return [
        f"`{setting}`",
        len(own),
        _with_error(own),
        "" if setting == "exact" else _with_error(beyond, "+"),
        f"{share:.3f}",
        f"{PUBLISHED[setting][kind]:.2f}" if setting in PUBLISHED else "",
    ]


def _with_error(figures: list[float], sign: str = "") -> str:
    error = standard_error(figures)
    mean = f"{statistics.fmean(figures):{sign}.2f}"
    return mean if error is None else f"{mean} ± {error:.2f}"


def table(store: CellStore) -> str:
    """Return the results as text and a table for each task."""
    config = store.config
    text = [
        f"## LongBench: {config['model']}",
        f"{config['model']}, {ruler.weights_of(config)}, {config['kv_cache_dtype']} keys and "
        f"values, greedy answers, prompt and answer of up to {config['length']} tokens. Scores are "
        "in per cent, with standard errors over samples; the error of a difference is that of the "
        "samples' differences. Bytes of keys, values and metadata are over those that exact "
        "attention reads. `A + B` is attention B over policy A. A policy sees the instruction at "
        f"the prompt's end.{shared_prompts.sentence(store)}",
    ]
    tasks = dict.fromkeys(place.rpartition(" ")[0] for place in store.cells)
    settings = ruler.in_order(store, SETTINGS)
    for task in tasks:
        kind = next(name for name, of_kind in KINDS.items() if task in of_kind)
        head = ["setting", "samples", "score", "against exact", "bytes read"]
        rows = [row(store, task, setting) for setting in settings]
        shown = [each for each in rows if each is not None]
        text += [f"### {task}", markdown([*head, f"ART, Table 7, {kind}"], shown)]
    return "\n\n".join(text)


def options() -> argparse.Namespace:
    """Return the parsed flags."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--tasks", nargs="+", default=["multi_news"], metavar="TASK")
    parser.add_argument("--length", type=int, default=LENGTH, help="of prompt and answer")
    parser.add_argument("--samples", type=int, help="of each task; default: all")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--threads", type=int)
    shared_prompts.add_options(parser)
    parser.add_argument("--quick", action="store_true", help="one sample, into build/")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    if flags.quick:
        flags.tasks, flags.samples, flags.length = flags.tasks[:1], 1, min(flags.length, 1024)
    flags.out = flags.out or (record.BUILD if flags.quick else record.results(__file__))
    return flags


def measured(flags: argparse.Namespace) -> CellStore:
    """Answer the groups of samples without a result, storing each at once; return all results.

    Raises:
        InputError: Samples, settings or results that cannot be used.
    """
    plan = LongBenchPlan(flags.tasks, flags.length, flags.samples, TOGETHER)
    samples = load_samples(plan, flags.data_dir)
    store, llms, prompts = shared_prompts.opened(
        flags, NAME, flags.length, table, length=flags.length
    )
    run(store, llms, prompts, samples, flags.length)
    store.write()
    return store


def main() -> int:
    """Measure and print the tables."""
    return script.printed(NAME, lambda: table(measured(options())))


if __name__ == "__main__":
    sys.exit(main())
