"""`suffice eval longbench`: shows progress, prints the scores."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from suffice.cli.eval.reference import reference_flags
from suffice.cli.eval.results import check_output, record, show
from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import rich.progress

    from suffice.cli.eval.options import LongBenchFlags
    from suffice.cli.options import ModelFlags
    from suffice.engine.llm import LLM
    from suffice.eval.answers import Score
    from suffice.eval.longbench import LongBenchPlan, LongBenchResult, LongBenchTally, Sample

COLUMNS = ["task", "samples", "score", "standard error"]
ANY_LENGTH = 1 << 30  # until a model is loaded, whose context is the default
COMPARED = ["reference", "difference", "its standard error"]


def run(flags: LongBenchFlags, model: ModelFlags) -> None:
    """Answer the samples and print the scores; after Ctrl-C, those of the answers so far.

    A reference answers first; what is compared is what both have answered.

    Raises:
        KeyboardInterrupt: Ctrl-C, raised after the scores so far are printed.
    """
    check_output(flags.output)
    compared = None if flags.against is None else reference_flags(flags.against, model)
    from suffice.eval.longbench import TASKS, LongBenchPlan, load_samples

    tasks = [task.strip() for task in flags.tasks.split(",")]
    tasks = list(TASKS) if tasks == ["all"] else tasks
    # Wrong tasks and numbers are refused before a model is loaded, which gives the length.
    asked = LongBenchPlan(
        tasks, ANY_LENGTH if flags.length is None else flags.length, flags.samples, flags.batch_size
    )
    samples = load_samples(asked, flags.data_dir)
    with busy(f"loading {model.model}"):
        llms = [each.load(seed=0) for each in (compared, model) if each is not None]
    plan = _plan(asked, flags.length, llms)
    tallies: list[LongBenchTally] = []
    interrupted = False
    for llm in llms:
        tally, interrupted = _answered(llm, samples, plan)
        if tally is None or (interrupted and llm is not llms[-1]):
            raise KeyboardInterrupt
        tallies.append(tally)
    result = tallies[-1].result()
    if compared:
        first = len(result.answers)
        tallies[0].answers = tallies[0].answers[:first]
        result = result.beyond(tallies[0].result())
    made = record(
        "longbench",
        llms[-1],
        flags,
        result,
        reads=llms[-1].runner.trace,
        interrupted=interrupted,
        length=plan.length,
    )
    columns = COLUMNS + (COMPARED if compared else [])
    show(made, columns, _rows(result), flags.output, llms[-1].runner.trace)
    if interrupted:
        raise KeyboardInterrupt


def _plan(asked: LongBenchPlan, length: int | None, llms: Sequence[LLM]) -> LongBenchPlan:
    """Return the plan with its length: the given one, or the models' context."""
    context = min(llm.config.max_model_len or 0 for llm in llms)
    if length is not None and length > context:
        raise InputError(f"--length={length}: must not be more than the context length, {context}")
    return dataclasses.replace(asked, length=context if length is None else length)


def _answered(
    llm: LLM, samples: list[Sample], plan: LongBenchPlan
) -> tuple[LongBenchTally | None, bool]:
    """Return the answers, and whether Ctrl-C interrupted them."""
    from suffice.eval.longbench import measure

    tally = None
    with _bar() as bar:
        task = bar.add_task("", total=len(samples), score=math.nan)
        try:
            for tally in measure(llm, samples, plan.length, plan.together):
                bar.update(task, completed=len(tally.answers), score=tally.score)
        except KeyboardInterrupt:
            return tally, True
    return tally, False


def _bar() -> rich.progress.Progress:
    from rich.progress import BarColumn, TimeRemainingColumn

    return progress_bar(
        BarColumn(),
        "{task.completed}/{task.total} samples",
        "score {task.fields[score]:.1f}",
        TimeRemainingColumn(),
    )


def _rows(result: LongBenchResult) -> list[list[object]]:
    rows = [_row(score) for score in (*result.scores, result.mean)]
    if result.against is None:
        return rows
    references = (*result.against.scores, result.against.mean)
    differences = (*result.against.differences, result.against.difference)
    return [
        [*row, reference.score, difference.score, difference.error]
        for row, reference, difference in zip(rows, references, differences, strict=True)
    ]


def _row(score: Score) -> list[object]:
    return [score.task or "mean", score.samples, score.score, score.error]
