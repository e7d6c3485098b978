"""Multiple-choice tasks without examples: how often the right answer is the likeliest.

    acc         the right continuation has the greatest log likelihood
    acc_norm    ... the greatest per character of the answer (without the space before it)

What is asked, and of which rows, is what lm-evaluation-harness 0.4 defines under the same names
(which it takes the test split for, where that has answers); a task reports acc_norm if it does
there. The mean is over tasks, of acc_norm over those that report it.
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
from suffice.eval.likelihood import Pair, Plan, encode_pair, fitted, score
from suffice.eval.task_data import Hub, Row, load_rows


@dataclass(frozen=True)
class Question:
    """Contexts and their continuations, one for each choice; `gold` is the right one.

    `lengths` are the characters of the choices.
    """

    contexts: list[str]
    continuations: list[str]
    lengths: list[int]
    gold: int


@dataclass(frozen=True)
class Task:
    """A data set, and how a row of it becomes a question."""

    name: str
    hub: Hub
    question: Callable[[Row], Question]
    normalised: bool = True  # acc_norm is reported too
    other_files: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Names that its rows may have in a folder."""
        return (f"{self.name}.jsonl", *self.other_files)

    def load(self, data_dir: str | None, limit: int | None) -> list[Question]:
        """Return the first questions.

        Raises:
            InputError: The data set is not to be had or damaged, or has no rows.
        """
        rows = load_rows(self.name, self.hub, self.files, data_dir)
        return [self.question(row) for row in rows[:limit]]


def _answers(context: str, choices: list[str], gold: int) -> Question:
    """Return the question which choice follows one context."""
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
    """Return a text of WikiHow without its markup in brackets, of which a title ends a sentence."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _winogrande(row: Row) -> Question:
    """Compare what follows the blank after each way to fill it."""
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
    """Return the tasks of a list of names with commas between them.

    Raises:
        InputError: An unknown name, or one that is given twice.
    """
    found: dict[str, Task] = {}
    for name in names.split(","):
        if name.strip() not in TASKS:
            raise unknown("task", name.strip(), TASKS)
        if name.strip() in found:
            raise InputError(f"--tasks={names}: names '{name.strip()}' twice")
        found[name.strip()] = TASKS[name.strip()]
    return list(found.values())


@dataclass(frozen=True)
class Result:
    """What a task came to; fractions, with standard errors; None: not defined."""

    task: str
    questions: int
    acc: float
    acc_stderr: float | None
    acc_norm: float | None
    acc_norm_stderr: float | None


@dataclass(frozen=True)
class Results:
    """What all tasks came to, and their mean."""

    tasks: list[Result]
    mean: Result


@dataclass
class Tally:
    """What was found so far: whether each question was answered rightly, by both measures."""

    task: Task
    right: list[bool] = field(default_factory=list)
    right_normalised: list[bool] = field(default_factory=list)

    @property
    def acc(self) -> float:
        """Accuracy so far."""
        return sum(self.right) / len(self.right)

    def add(self, question: Question, logs: Sequence[float]) -> None:
        """Count a question, given the log likelihoods of its choices."""
        found = np.asarray(logs)
        self.right.append(int(found.argmax()) == question.gold)
        with np.errstate(divide="ignore"):  # an empty choice is the least likely there is
            normalised = found / np.asarray(question.lengths)
        self.right_normalised.append(int(normalised.argmax()) == question.gold)

    def result(self) -> Result:
        """Return the figures of what was counted."""
        norm = _mean(self.right_normalised) if self.task.normalised else (None, None)
        return Result(self.task.name, len(self.right), *_mean(self.right), *norm)


def encoded(tokenizer: Tokenizer, questions: Sequence[Question], context: int) -> list[list[Pair]]:
    """Return the tokens of each question's choices, cut to a context of that many tokens.

    Raises:
        InputError: An answer that does not fit.
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
    plan: Plan,
) -> Iterator[Tally]:
    """Answer questions, `pairs` their tokens; yield the same tally after each.

    Raises:
        OutOfMemory: There is no memory for what runs together.
    """
    tally = Tally(task)
    owners = [(at, choice) for at, choices in enumerate(pairs) for choice in range(len(choices))]
    found: Mapping[int, dict[int, float]] = {at: {} for at in range(len(questions))}
    for index, likelihood in score(runner, [pair for each in pairs for pair in each], plan):
        at, choice = owners[index]
        found[at][choice] = likelihood.log
        if len(found[at]) == len(pairs[at]):
            tally.add(questions[at], [found[at][choice] for choice in range(len(pairs[at]))])
            yield tally


def summed_up(results: Sequence[Result]) -> Results:
    """Return results with their mean; errors are those of a mean of independent tasks."""
    acc = [(result.acc, result.acc_stderr) for result in results]
    norm = [(each.acc_norm, each.acc_norm_stderr) for each in results if each.acc_norm is not None]
    mean = Result(
        "mean",
        sum(result.questions for result in results),
        *_together(acc),
        *(_together(norm) if norm else (None, None)),
    )
    return Results(list(results), mean)


def _mean(right: Sequence[bool]) -> tuple[float, float | None]:
    """Return the fraction that is right and the error of that as a mean."""
    count = len(right)
    error = statistics.stdev(right) / math.sqrt(count) if count > 1 else None
    return sum(right) / count, error


def _together(parts: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    """Return the mean of values with errors, and its error; None if one has none."""
    errors = [error for _, error in parts if error is not None]
    error = math.hypot(*errors) / len(parts) if len(errors) == len(parts) else None
    return statistics.fmean(value for value, _ in parts), error
