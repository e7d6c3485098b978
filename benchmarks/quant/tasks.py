"""The loss of right answers with few bits: weights, keys and values in codes, zero-shot.

    python -m benchmarks.quant.tasks --data-dir DIR --cache FOLDER     SmolLM2, minutes a setting
    ... --settings none "int8 + int8" "kmeans:hadamard=false + kmeans4"
    ... --task arc_easy                                                instead of PIQA
    ... --limit 8 --out build                                          a short trial

A setting is weights and, after ` + `, the type of keys and values, by default the model's. Weights
that need a calibration are those that quality.py stores in --cache; others are quantized as they
are loaded. Decode steps compute the answers, as for a user. Questions are those in
DIR, in the form of lm-evaluation-harness; each task has its own result. Cells are stored as they
are done.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path, PurePath
from typing import Any

from benchmarks.harness import record, script
from benchmarks.harness.tables import Cell, CellStore, markdown
from benchmarks.quant.cells import kept_path
from suffice import LLM
from suffice.errors import InputError
from suffice.eval.likelihood import LikelihoodPlan, context_length
from suffice.eval.tasks import Question, Task, chosen, encoded, measure
from suffice.progress import counting_bar

NAME, PIQA = "tasks", "piqa"
_KINDS = ("acc", "acc_norm")
SETTINGS = (
    "none",
    "none + int8",
    "none + kmeans4",
    "int8",
    "rtn:group=64",
    "kllm:a=16",
    "kllm",
    "kllm:a=3",
    "kmeans:hadamard=false",
    "kmeans:hadamard=false + kmeans4",
)


def engine(flags: argparse.Namespace, setting: str) -> LLM:
    """Return an engine with a setting's weights, keys and values.

    Raises:
        InputError: A setting that is not available.
    """
    weights, _, kv = setting.partition(" + ")
    options: dict[str, Any] = {"kv_cache_dtype": kv or "auto", "threads": flags.threads}
    kept = kept_path(flags.cache, PurePath(flags.model).name, weights)
    if kept.exists():
        return LLM(kept, **options)
    return LLM(flags.model, quantization=weights, **options)


def answered(llm: LLM, task: Task, questions: list[Question], name: str) -> Cell:
    """Return the shares of right answers."""
    pairs = encoded(llm.tokenizer, questions, context_length(llm))
    with counting_bar() as bar:
        tallies = measure(llm.runner, task, questions, pairs, LikelihoodPlan("decode", 8))
        *_, tally = bar.track(tallies, total=len(questions), description=name)
    return dataclasses.asdict(tally.result())


def table(store: CellStore) -> str:
    """Return the results as a table."""
    text = f"## Right answers: {store.config['model']}"
    about = (
        f"{store.config['model']}, {store.config['task']}, zero-shot, "
        f"{store.config['questions']} questions, by decode steps, with standard errors. Weights "
        "are those of `quality`; keys and values are the model's where none are named."
    )
    rows = [
        [f"`{setting}`", *(_shown(cell, each) for each in _KINDS)]
        for cells in store.cells.values()
        for setting, cell in cells.items()
    ]
    return "\n\n".join([text, about, markdown(["setting", *_KINDS], rows)])


def _shown(cell: Cell, kind: str) -> str:
    """Return a share with its error; some tasks have no normalised one."""
    return "" if cell[kind] is None else f"{cell[kind]:.3f} ± {cell[f'{kind}_stderr']:.3f}"


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--cache", type=Path, default=Path("build/quantized"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--task", default=PIQA)
    parser.add_argument("--limit", type=int, help="questions; default: all")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=record.results(__file__))
    flags = parser.parse_args()
    if flags.limit is not None and flags.limit < 2:
        raise InputError(f"--limit={flags.limit}: must be at least 2 questions")
    return flags


def measured(flags: argparse.Namespace) -> CellStore:
    """Measure the settings without a result; return all results.

    Raises:
        InputError: Questions or settings that are not available.
    """
    (task,) = chosen(flags.task)
    questions = task.load(flags.data_dir, flags.limit)
    model = PurePath(flags.model).name
    shown = {"model": model, "task": task.name, "questions": len(questions)}
    parts = [NAME, model] + [task.name] * (task.name != PIQA)
    store = CellStore(flags.out, "_".join(parts), shown, record.facts(), table)
    store.read()
    for setting in flags.settings:
        if setting not in store.cells.get(task.name, {}):
            llm = engine(flags, setting)
            store.keep(task.name, setting, answered(llm, task, questions, setting))
    store.write()
    return store


def main() -> int:
    """Measure the settings and print the table."""
    return script.printed(NAME, lambda: table(measured(options())))


if __name__ == "__main__":
    sys.exit(main())
