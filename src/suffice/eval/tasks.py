"""Multiple-choice tasks, zero-shot: how often the right answer is the most likely one.

    acc         the right continuation has the highest log likelihood
    acc_norm    ... the highest per character of the answer (without the space before it)

Prompts and rows are those of lm-evaluation-harness 0.4's tasks of the same names, which use the
test split if it has answers. A task reports acc_norm if the harness does. The mean is over tasks;
for acc_norm, over the tasks that report it.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from suffice.engine.protocol import Runner, Tokenizer
from suffice.errors import InputError, unknown
from suffice.eval.likelihood import LikelihoodPlan, Pair, encode_pair, fitted, score
from suffice.eval.task_data import Hub, Row, load_rows


@dataclass(frozen=True)
class Question:
    """Contexts and their continuations, one per choice; `gold` is the index of the right one.

    `lengths` are the numbers of characters of the choices.
    """

    contexts: list[str]
    continuations: list[str]
    lengths: list[int]
    gold: int


@dataclass(frozen=True)
class Task:
    """A data set, and the function that converts a row to a question."""

    name: str
    hub: Hub
    question: Callable[[Row], Question]
    normalised: bool = True  # whether acc_norm is reported too
    other_files: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """File names that its rows may have in a folder."""
        return (f"{self.name}.jsonl", *self.other_files)

    def load(self, data_dir: str | None, limit: int | None) -> list[Question]:
        """Return the questions, at most `limit` of them.

        Raises:
            InputError: The data set is not available, is damaged, or has no rows.
        """
        rows = load_rows(self.name, self.hub, self.files, data_dir)
        return [self.question(row) for row in rows[:limit]]


def _answers(context: str, choices: list[str], gold: int) -> Question:
    """Return a question in which all choices have the same context."""
    count = len(choices)
    return Question([context] * count, [f" {choice}" for choice in choices], _sizes(choices), gold)


def _sizes(choices: list[str]) -> list[int]:
    return [len(choice) for choice in choices]


def _piqa(row: Row) -> Question:
    choices = [row.text("sol1"), row.text("sol2")]
    return _answers(f"Question: {row.text('goal')}\nAnswer:", choices, row.index("label", "01"))


def _lettered(row: Row, context: str) -> Question:
    choices, labels = row.texts("choices.text"), row.texts("choices.label")
    if len(choices) != len(labels) or not choices:
        raise row.wrong("choices", f"has {len(choices)} texts and {len(labels)} labels")
    return _answers(context, choices, row.index("answerKey", labels))


def _arc(row: Row) -> Question:
    return _lettered(row, f"Question: {row.text('question')}\nAnswer:")


def _openbookqa(row: Row) -> Question:
    return _lettered(row, row.text("question_stem"))


def _boolq(row: Row) -> Question:
    context = f"{row.text('passage')}\nQuestion: {row.text('question')}?\nAnswer:"
    return _answers(context, ["no", "yes"], row.index("label", "01"))


def _hellaswag(row: Row) -> Question:
    context = f"{row.text('activity_label')}: {row.text('ctx_a')} {row.text('ctx_b').capitalize()}"
    endings = [_cleaned(ending) for ending in row.texts("endings")]
    labels = [str(number) for number in range(len(endings))]
    return _answers(_cleaned(context), endings, row.index("label", labels))


def _cleaned(text: str) -> str:
    """Return a WikiHow text without its markup in brackets; [title] becomes a full stop."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _winogrande(row: Row) -> Question:
    """Return a question with a context per option; the text after the blank is scored."""
    before, blank, after = row.text("sentence").partition("_")
    if not blank:
        raise row.wrong("sentence", "has no blank, '_'")
    contexts = [before + row.text("option1"), before + row.text("option2")]
    rest = f" {after.strip()}"
    return Question(contexts, [rest] * 2, _sizes(contexts), row.index("answer", "12"))


TASKS = {
    task.name: task
    for task in (
        Task("piqa", ("baber/piqa", None, "validation"), _piqa, other_files=("piqa-valid.jsonl",)),
        Task("arc_easy", ("allenai/ai2_arc", "ARC-Easy", "test"), _arc),
        Task("arc_challenge", ("allenai/ai2_arc", "ARC-Challenge", "test"), _arc),
        Task("hellaswag", ("Rowan/hellaswag", None, "validation"), _hellaswag),
        Task(
            "winogrande",
            ("allenai/winogrande", "winogrande_xl", "validation"),
            _winogrande,
            normalised=False,
        ),
        Task("boolq", ("aps/super_glue", "boolq", "validation"), _boolq, normalised=False),
        Task("openbookqa", ("allenai/openbookqa", "main", "test"), _openbookqa),
    )
}


def chosen(names: str) -> list[Task]:
    """Return the tasks in a comma-separated list of names.

    Raises:
        InputError: A name is unknown, or is given twice.
    """
    found: dict[str, Task] = {}
    for name in names.split(","):
        if name.strip() not in TASKS:
            raise unknown("task", name.strip(), TASKS)
        if name.strip() in found:
            raise InputError(f"--tasks={names}: '{name.strip()}' is given twice")
        found[name.strip()] = TASKS[name.strip()]
    return list(found.values())


@dataclass(frozen=True)
class TasksResult:
    """Accuracies of a task, as fractions with standard errors; None if not defined."""

    task: str
    questions: int
    acc: float
    acc_stderr: float | None
    acc_norm: float | None
    acc_norm_stderr: float | None


@dataclass(frozen=True)
class Results:
    """The results of all tasks, and their mean."""

    tasks: list[TasksResult]
    mean: TasksResult


@dataclass
class TasksTally:
    """The answers so far: whether each was right, by both measures."""

    task: Task
    right: list[bool] = field(default_factory=list)
    right_normalised: list[bool] = field(default_factory=list)

    @property
    def acc(self) -> float:
        """Accuracy so far."""
        return sum(self.right) / len(self.right)

    def add(self, question: Question, logs: Sequence[float]) -> None:
        """Add a question, given the log likelihoods of its choices."""
        found = np.asarray(logs)
        self.right.append(int(found.argmax()) == question.gold)
        with np.errstate(divide="ignore"):  # an empty choice gets -infinity
            normalised = found / np.asarray(question.lengths)
        self.right_normalised.append(int(normalised.argmax()) == question.gold)

    def result(self) -> TasksResult:
        """Return the accuracies of the answers so far."""
        norm = _mean(self.right_normalised) if self.task.normalised else (None, None)
        return TasksResult(self.task.name, len(self.right), *_mean(self.right), *norm)


def encoded(tokenizer: Tokenizer, questions: Sequence[Question], context: int) -> list[list[Pair]]:
    """Return the tokens of each question's choices, truncated to fit `context` tokens.

    Raises:
        InputError: An answer does not fit.
    """
    return [
        [
            fitted(encode_pair(tokenizer, *texts), context)
            for texts in zip(question.contexts, question.continuations, strict=True)
        ]
        for question in questions
    ]


def measure(
    runner: Runner,
    task: Task,
    questions: Sequence[Question],
    pairs: Sequence[Sequence[Pair]],
    plan: LikelihoodPlan,
) -> Iterator[TasksTally]:
    """Answer questions, given as tokens in `pairs`; yield the tally after each.

    Raises:
        OutOfMemory: There is no memory for the answers that run together.
    """
    tally = TasksTally(task)
    owners = [(at, choice) for at, choices in enumerate(pairs) for choice in range(len(choices))]
    found: Mapping[int, dict[int, float]] = {at: {} for at in range(len(questions))}
    for index, likelihood in score(runner, [pair for each in pairs for pair in each], plan):
        at, choice = owners[index]
        found[at][choice] = likelihood.log
        if len(found[at]) == len(pairs[at]):
            tally.add(questions[at], [found[at][choice] for choice in range(len(pairs[at]))])
            yield tally


def summed_up(results: Sequence[TasksResult]) -> Results:
    """Return results with their mean; its standard error assumes independent tasks."""
    acc = [(result.acc, result.acc_stderr) for result in results]
    norm = [(each.acc_norm, each.acc_norm_stderr) for each in results if each.acc_norm is not None]
    mean = TasksResult(
        "mean",
        sum(result.questions for result in results),
        *_together(acc),
        *(_together(norm) if norm else (None, None)),
    )
    return Results(list(results), mean)


def _mean(right: Sequence[bool]) -> tuple[float, float | None]:
    """Return the fraction of right answers and its standard error."""
    count = len(right)
    error = statistics.stdev(right) / math.sqrt(count) if count > 1 else None
    return sum(right) / count, error


def _together(parts: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    """Return the mean of values with errors, and its error; None if one error is unknown."""
    errors = [error for _, error in parts if error is not None]
    error = math.hypot(*errors) / len(parts) if len(errors) == len(parts) else None
    return statistics.fmean(value for value, _ in parts), error
