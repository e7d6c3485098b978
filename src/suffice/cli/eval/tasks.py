"""`suffice eval tasks`: shows progress, prints the accuracies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from suffice.cli.eval.results import check_output, record, show
from suffice.cli.output import busy
from suffice.errors import InputError
from suffice.progress import progress_bar

if TYPE_CHECKING:
    import rich.progress

    from suffice.cli.eval.options import TasksFlags
    from suffice.cli.options import ModelFlags
    from suffice.engine.llm import LLM
    from suffice.eval.likelihood import LikelihoodPlan, Pair
    from suffice.eval.tasks import Question, Results, Task, TasksResult

COLUMNS = ("task", "questions", "acc", "acc_stderr", "acc_norm", "acc_norm_stderr")


def run(flags: TasksFlags, model: ModelFlags) -> None:
    """Answer the questions and print the accuracies; after Ctrl-C, those so far.

    Raises:
        KeyboardInterrupt: Ctrl-C, raised after the accuracies so far are printed.
    """
    check_output(flags.output)
    model.check_drafts("eval tasks")
    if flags.limit is not None and flags.limit < 1:
        raise InputError(f"--limit={flags.limit}: must be at least 1 question")
    from suffice.eval.likelihood import LikelihoodPlan, context_length
    from suffice.eval.modes import check_mode
    from suffice.eval.tasks import chosen, encoded, summed_up

    plan = LikelihoodPlan(flags.mode, flags.batch_size)
    check_mode(plan.mode, model.config())
    asked = [(task, task.load(flags.data_dir, flags.limit)) for task in chosen(flags.tasks)]
    with busy(f"loading {model.model}"):
        llm = model.load(seed=0)
        room = context_length(llm)
        pairs = [encoded(llm.tokenizer, questions, room) for _, questions in asked]
    results, interrupted = _measured(llm, asked, pairs, plan)
    if not results:
        raise KeyboardInterrupt
    found = summed_up(results)
    made = record("tasks", llm, flags, found, reads=llm.runner.trace, interrupted=interrupted)
    show(made, COLUMNS, _rows(found), flags.output, llm.runner.trace)
    if interrupted:
        raise KeyboardInterrupt


def _measured(
    llm: LLM,
    asked: list[tuple[Task, list[Question]]],
    pairs: list[list[list[Pair]]],
    plan: LikelihoodPlan,
) -> tuple[list[TasksResult], bool]:
    """Return the results of the tasks, and whether Ctrl-C interrupted them."""
    from suffice.eval.tasks import measure

    results: list[TasksResult] = []
    with _bar() as bar:
        for (task, questions), tokens in zip(asked, pairs, strict=True):
            shown = bar.add_task(task.name, total=len(questions), acc=math.nan)
            tally = None
            try:
                for tally in measure(llm.runner, task, questions, tokens, plan):
                    bar.update(shown, advance=1, acc=tally.acc)
            except KeyboardInterrupt:
                return results + ([tally.result()] if tally else []), True
            if tally:
                results.append(tally.result())
    return results, False


def _bar() -> rich.progress.Progress:
    from rich.progress import BarColumn, TimeRemainingColumn

    return progress_bar(
        "{task.description}",
        BarColumn(),
        "{task.completed}/{task.total} questions",
        "acc {task.fields[acc]:.3f}",
        TimeRemainingColumn(),
    )


def _rows(results: Results) -> list[list[object]]:
    return [
        [getattr(result, column) for column in COLUMNS] for result in (*results.tasks, results.mean)
    ]
