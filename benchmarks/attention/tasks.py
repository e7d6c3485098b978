"""Right answers with a coded softmax: EXAQ's Tables 2 and 5 on four tasks, zero-shot.

    suffice calibrate --text FILE -o smollm2.json           the model's spread of scores, minutes
    python -m benchmarks.attention.tasks --data-dir DIR --calibration smollm2.json      hours
    ... --tasks piqa --settings exact exaq:bits=3           a task, some softmaxes
    ... --device cuda                                       in PyTorch on a GPU, minutes
    ... --limit 8 --out build                               a short trial

DIR has the tasks' questions, in the form of lm-evaluation-harness. As in the paper, every softmax
of a question goes by codes, also those of its context (`prefill=true`): context and answer run as
one prompt. A change against exact attention is the mean over questions, with its standard error:
what two settings answer alike cancels. The mean is over the tasks. Cells are stored as they are
done.

Without --device the engine answers. With it (cpu or cuda) PyTorch does, many texts at a time, in
float32; these answers have a result of their own, and are compared with exact ones of the same
device.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import torch

from benchmarks.attention.coded_texts import CodedTexts
from benchmarks.harness import record, script, torch_device, torch_texts
from benchmarks.harness.tables import Cell, CellStore, markdown
from suffice import LLM
from suffice.checkpoints.files import fingerprint, locate
from suffice.checkpoints.open import open_checkpoint
from suffice.engine.config import Config
from suffice.errors import InputError
from suffice.eval.answers import standard_error
from suffice.eval.likelihood import LikelihoodPlan, context_length
from suffice.eval.tasks import Question, Task, chosen, encoded, measure
from suffice.progress import counting_bar
from suffice.quant.none import NoQuant
from suffice.text.tokenizer import load_tokenizer

NAME, EXACT = "tasks", "exact"
TASKS = ("piqa", "arc_easy", "winogrande", "boolq")
SETTINGS = (
    EXACT,
    *(f"exaq:bits={bits}" for bits in (2, 3)),
    *(f"exaq:bits={bits},clip=minmax" for bits in (2, 3)),
    *(f"exaq:bits={bits},clip=fit" for bits in (2, 3)),
    *(f"exaq_km:bits={bits}" for bits in (2, 3)),
)
# EXAQ, Table 5 (a), LLaMA-1-13B: the mean of seven tasks, in per cent.
PUBLISHED = {
    EXACT: "68.2",
    "exaq:bits=2": "66.7",
    "exaq:bits=3": "67.8",
    "exaq:bits=2,clip=minmax": "48.5",
    "exaq:bits=3,clip=minmax": "66.3",
}


Answer = Callable[[Task, list[Question]], list[bool]]  # whether each answer is right


def asked(flags: argparse.Namespace, setting: str) -> dict[str, Any]:
    """Return the engine's options for a setting's softmax, in prompts too."""
    if setting == EXACT:
        return {}
    softmax = f"{setting}{',' if ':' in setting else ':'}prefill=true"
    return {"softmax": softmax, "calibration": flags.calibration}


def engine(flags: argparse.Namespace, setting: str) -> LLM:
    """Return an engine with a setting's softmax.

    Raises:
        InputError: A setting or a calibration that cannot be used.
    """
    return LLM(flags.model, threads=flags.threads, **asked(flags, setting))


def answered(llm: LLM, task: Task, questions: list[Question], name: str) -> list[bool]:
    """Return whether each answer is right."""
    pairs = encoded(llm.tokenizer, questions, context_length(llm))
    with counting_bar() as bar:
        tallies = measure(llm.runner, task, questions, pairs, LikelihoodPlan("prefill"))
        *_, tally = bar.track(tallies, total=len(questions), description=f"{task.name} {name}")
    found: list[bool] = tally.right
    return found


def by_engine(flags: argparse.Namespace) -> Callable[[str], Answer]:
    """Return what loads an engine for a setting, and returns what answers."""

    def run(setting: str) -> Answer:
        llm = engine(flags, setting)
        return lambda task, questions: answered(llm, task, questions, setting)

    return run


def in_torch(flags: argparse.Namespace, device: torch.device) -> Callable[[str], Answer]:
    """Return what gives a setting to a model on a device, and returns what answers.

    Raises:
        InputError: A setting, a calibration or a model that cannot be used.
    """
    path = locate(flags.model)
    checkpoint, tokenizer = open_checkpoint(path), load_tokenizer(path)
    levels = {}
    for setting in flags.settings:
        config = Config.create(model=flags.model, **asked(flags, setting))
        config.check_model(checkpoint.config)
        if config.calibration is not None:
            config.calibration.check(flags.model, fingerprint(path))
        levels[setting] = config.levels()
    decoder = CodedTexts.from_checkpoint(checkpoint, NoQuant("float32"))
    decoder.device = device

    def run(setting: str) -> Answer:
        decoder.use(levels[setting])
        return lambda task, questions: (
            torch_texts.answered(decoder, tokenizer, task, questions, setting).right
        )

    return run


def cell_of(right: list[bool], exact: list[bool]) -> Cell:
    """Return the share of right answers and its change against exact attention, in points."""
    change = [100.0 * (one - other) for one, other in zip(right, exact, strict=True)]
    share = [100.0 * each for each in right]
    return {
        "questions": len(right),
        "acc": statistics.fmean(share),
        "acc_stderr": standard_error(share),
        "change": statistics.fmean(change),
        "change_stderr": standard_error(change),
    }


def mean(cells: list[Cell], name: str) -> str:
    """Return the mean over tasks of a figure, with its standard error."""
    error = math.sqrt(sum(cell[f"{name}_stderr"] ** 2 for cell in cells)) / len(cells)
    return f"{statistics.fmean(cell[name] for cell in cells):.1f} ± {error:.1f}"


def table(store: CellStore) -> str:
    """Return the results as a table."""
    tasks = list(store.cells)
    limit = store.config["limit"]
    questions = f"at most {limit} questions a task" if limit else "all questions"
    about = (
        f"{store.config['model']}, zero-shot, {questions}; "
        "context and answer as one prompt, every softmax by codes. In per cent, with "
        "standard errors; the change is in points, question by question. Published: EXAQ, Table 5 "
        "(a), LLaMA-1-13B, the mean of seven tasks."
    )
    if "device" in store.config:
        about += torch_texts.ABOUT + torch_device.sentence(store.cells)
    settings = dict.fromkeys(setting for cells in store.cells.values() for setting in cells)
    rows = []
    for setting in settings:
        cells = [store.cells[task].get(setting) for task in tasks]
        known = [cell for cell in cells if cell]
        accs = [f"{cell['acc']:.1f} ± {cell['acc_stderr']:.1f}" if cell else "" for cell in cells]
        whole = [mean(known, name) for name in ("acc", "change")]
        means = whole if len(known) == len(tasks) else ["", ""]
        rows.append([f"`{setting}`", *accs, *means, PUBLISHED.get(setting, "")])
    head = ["softmax", *tasks, "mean", "against exact", "published"]
    title = f"## Right answers by softmax: {store.config['model']}"
    return "\n\n".join([title, about, markdown(head, rows)])


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--calibration", required=True, help="file of `suffice calibrate`")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--limit", type=int, help="questions a task; default: all")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--threads", type=int)
    torch_device.add_option(parser, None)
    parser.add_argument("--out", type=Path, default=record.results(__file__))
    flags = parser.parse_args()
    if flags.limit is not None and flags.limit < 2:
        raise InputError(f"--limit={flags.limit}: must be at least 2 questions")
    flags.settings = list(dict.fromkeys([EXACT, *flags.settings]))
    return flags


def measured(flags: argparse.Namespace) -> CellStore:
    """Measure the cells without a result; return all results.

    Raises:
        InputError: Questions, settings or a calibration that cannot be used.
    """
    tasks = chosen(",".join(flags.tasks))
    questions = {task.name: task.load(flags.data_dir, flags.limit) for task in tasks}
    model = PurePath(flags.model).name
    shown: dict[str, Any] = {"model": model, "limit": flags.limit}
    name, gpu = f"{NAME}_{model}", {}
    if flags.device is None:
        run = by_engine(flags)
    else:
        device = torch_device.chosen(flags.device)
        torch_device.use_threads(flags.threads)
        run, gpu = in_torch(flags, device), torch_device.of_cell(device)
        name, shown = f"{NAME}_torch_{model}", shown | {"device": gpu.get("gpu", device.type)}
    store = CellStore(flags.out, name, shown, record.facts(), table)
    store.read()
    for setting in flags.settings:
        missing = [task for task in tasks if setting not in store.cells.get(task.name, {})]
        answer = run(setting) if missing else None
        for task in missing:
            assert answer is not None
            right = answer(task, questions[task.name])
            exact = store.details[task.name][EXACT] if setting != EXACT else right
            store.keep(task.name, setting, cell_of(right, exact) | gpu, right)
    store.write()
    return store


def main() -> int:
    """Measure the settings and print the table."""
    return script.printed(NAME, lambda: table(measured(options())))


if __name__ == "__main__":
    sys.exit(main())
