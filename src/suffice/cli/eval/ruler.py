"""`suffice eval ruler`: shows progress, prints the scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from suffice.cli.bench import whole_numbers
from suffice.cli.eval.results import check_output, record, show
from suffice.cli.output import busy
from suffice.progress import progress_bar

if TYPE_CHECKING:
    import rich.progress

    from suffice.cli.eval.options import RulerFlags
    from suffice.cli.options import ModelFlags
    from suffice.eval.ruler import RulerPlan, RulerResult

COLUMNS = ("task", "length", "score", "standard error", "samples")
Row = tuple[str, int | None, float, float | None, int]


def run(flags: RulerFlags, model: ModelFlags) -> None:
    """Run the tasks and print the scores; after Ctrl-C, those of the answers so far.

    Raises:
        KeyboardInterrupt: Ctrl-C, raised after the scores so far are printed.
    """
    check_output(flags.output)
    from suffice.eval.ruler import check, measure

    plan = _plan(flags)
    with busy(f"loading {model.model}"):
        llm = model.load(seed=0)
    check(plan, llm.tokenizer, llm.config.max_model_len or 0)
    tally, interrupted = None, False
    with _bar() as bar:
        task = bar.add_task("", total=plan.total, score=math.nan)
        try:
            for tally in measure(llm, plan):
                bar.update(task, completed=len(tally.answers), score=tally.score)
        except KeyboardInterrupt:
            interrupted = True
    if tally is None:
        raise KeyboardInterrupt
    result = tally.result()
    found = record("ruler", llm, flags, result, reads=llm.runner.trace, interrupted=interrupted)
    show(found, COLUMNS, _rows(result), flags.output, llm.runner.trace)
    if interrupted:
        raise KeyboardInterrupt


def _plan(flags: RulerFlags) -> RulerPlan:
    from suffice.eval.ruler import TASKS, RulerPlan

    tasks = [task.strip() for task in flags.tasks.split(",")]
    return RulerPlan(
        list(TASKS) if tasks == ["all"] else tasks,
        whole_numbers("--lengths", flags.lengths),
        flags.samples,
        flags.seed,
        flags.batch_size,
    )


def _bar() -> rich.progress.Progress:
    from rich.progress import BarColumn, TimeRemainingColumn

    return progress_bar(
        BarColumn(),
        "{task.completed}/{task.total} samples",
        "score {task.fields[score]:.1f}",
        TimeRemainingColumn(),
    )


def _rows(result: RulerResult) -> list[Row]:
    return [
        (each.task or "mean", each.length, each.score, each.error, each.samples)
        for each in (*result.scores, *result.means, result.mean)
    ]
