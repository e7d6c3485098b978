"""LongBench: questions, summaries, few-shot tasks, retrieval and code over long texts.

From Bai et al. 2024, "LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding".
Answers are greedy. A sample's score is that of the right answer which fits best, in per cent.

    kind                    tasks                                                       metric
    question, one text      narrativeqa qasper multifieldqa_en multifieldqa_zh          F1
    question, many texts    hotpotqa 2wikimqa musique                                   F1
                            dureader                                                    ROUGE-L
    summary                 gov_report qmsum multi_news vcsum                           ROUGE-L
    few-shot                trec lsht                                                   accuracy
                            triviaqa                                                    F1
                            samsum                                                      ROUGE-L
    synthetic               passage_count passage_retrieval_en passage_retrieval_zh     accuracy
    code                    lcc repobench-p                                             edit sim.

A prompt that is too long loses the tokens in its middle. Few-shot and code tasks have no chat
template; of an answer to a few-shot task only the first line counts.

Differs  The prompts say the same in other words (`longbench_prompts`), so scores can be compared
         with each other, but only roughly with published ones. A chat template counts as a part of
         the prompt's length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from suffice.errors import InputError, unknown
from suffice.eval import longbench_scores as scores
from suffice.eval.answers import Score, answered, mean_of, score_of
from suffice.eval.longbench_prompts import prompt_of
from suffice.eval.prompts import prompt_tokens
from suffice.eval.task_data import Row, load_rows

if TYPE_CHECKING:
    from suffice.engine.llm import LLM
    from suffice.engine.protocol import Tokenizer

HUB = "THUDM/LongBench"
LEAST_PROMPT = 64  # tokens: room for the instructions

Metric = Callable[[str, str, Sequence[str]], float]  # answer, right answer, classes


def _f1(said: str, right: str, classes: Sequence[str]) -> float:
    return scores.f1(scores.plain_words(said), scores.plain_words(right))


def _f1_zh(said: str, right: str, classes: Sequence[str]) -> float:
    return scores.f1(scores.characters(said), scores.characters(right))


def _rouge(said: str, right: str, classes: Sequence[str]) -> float:
    return scores.rouge_l(said, right)


def _rouge_zh(said: str, right: str, classes: Sequence[str]) -> float:
    return scores.rouge_l(said, right, scores.characters)


def _number(said: str, right: str, classes: Sequence[str]) -> float:
    return scores.share_of_numbers(said, right)


def _code(said: str, right: str, classes: Sequence[str]) -> float:
    return scores.edit_similarity(said, right)


@dataclass(frozen=True)
class Task:
    """How a task is scored, and how many tokens an answer has at most."""

    metric: Metric
    new_tokens: int
    chat: bool = True
    first_line: bool = False


TASKS = {
    "narrativeqa": Task(_f1, 128),
    "qasper": Task(_f1, 128),
    "multifieldqa_en": Task(_f1, 64),
    "multifieldqa_zh": Task(_f1_zh, 64),
    "hotpotqa": Task(_f1, 32),
    "2wikimqa": Task(_f1, 32),
    "musique": Task(_f1, 32),
    "dureader": Task(_rouge_zh, 128),
    "gov_report": Task(_rouge, 512),
    "qmsum": Task(_rouge, 512),
    "multi_news": Task(_rouge, 512),
    "vcsum": Task(_rouge_zh, 512),
    "trec": Task(scores.share_of_classes, 64, chat=False, first_line=True),
    "triviaqa": Task(_f1, 32, chat=False, first_line=True),
    "samsum": Task(_rouge, 128, chat=False, first_line=True),
    "lsht": Task(scores.share_of_classes, 64, chat=False, first_line=True),
    "passage_count": Task(_number, 32),
    "passage_retrieval_en": Task(_number, 32),
    "passage_retrieval_zh": Task(_number, 32),
    "lcc": Task(_code, 64, chat=False),
    "repobench-p": Task(_code, 64, chat=False),
}


@dataclass(frozen=True)
class LongBenchPlan:
    """Samples to run: the first `samples` of each task (None: all), `together` at a time.

    `length` is the most tokens of prompt and answer together.

    Raises:
        InputError: A task is unknown or repeated, or a number is out of range.
    """

    tasks: Sequence[str]
    length: int
    samples: int | None = None
    together: int = 8

    def __post_init__(self) -> None:
        for at, task in enumerate(self.tasks):
            if task not in TASKS:
                raise unknown("task", task, (*TASKS, "all"))
            if task in self.tasks[:at]:
                raise InputError(f"--tasks: {task} is given twice; give it once")
            least = TASKS[task].new_tokens + LEAST_PROMPT
            if self.length < least:
                raise InputError(
                    f"--length={self.length}: must be at least {least} for {task}, whose answers "
                    f"have up to {TASKS[task].new_tokens} tokens"
                )
        if self.samples is not None and self.samples < 1:
            raise InputError(f"--samples={self.samples}: must be at least 1 of each task")
        if self.together < 1:
            raise InputError(f"--batch-size={self.together}: must be at least 1 prompt")


@dataclass(frozen=True)
class Sample:
    """A row of a task: the text of its prompt, the right answers, and all classes if it has any."""

    task: str
    index: int
    prompt: str
    answers: tuple[str, ...]
    classes: tuple[str, ...]

    def tokens(self, tokenizer: Tokenizer, length: int) -> list[int]:
        """Return the prompt's tokens, cut in the middle so that the answer fits into `length`.

        Raises:
            InputError: The length has no room for a prompt.
        """
        task = TASKS[self.task]
        whole = tokenizer.encode(self.prompt, special=False)
        room, kept, text = length - task.new_tokens, len(whole), self.prompt
        while len(tokens := prompt_tokens(text, tokenizer, chat=task.chat)) > room:
            kept -= len(tokens) - room
            if kept < 2:
                raise InputError(f"--length={length}: leaves no room for prompts of {self.task}")
            text = _without_middle(tokenizer, whole, kept)
        return tokens

    def score(self, said: str) -> float:
        """Return the score of an answer, in per cent."""
        task = TASKS[self.task]
        if task.first_line:
            said = said.lstrip("\n").partition("\n")[0]
        return 100 * max(task.metric(said, right, self.classes) for right in self.answers)


@dataclass(frozen=True)
class Answer:
    """A model's answer to a sample."""

    task: str
    index: int
    prompt_tokens: int
    text: str
    score: float


@dataclass(frozen=True)
class Comparison:
    """Scores of a reference, and what each task's scores are above them, sample by sample."""

    scores: list[Score]
    mean: Score
    differences: list[Score]
    difference: Score


@dataclass(frozen=True)
class LongBenchResult:
    """The score of each task, and their mean; `against`: the same of a reference."""

    scores: list[Score]
    mean: Score
    answers: list[Answer]
    against: Comparison | None = None

    def beyond(self, reference: LongBenchResult) -> LongBenchResult:
        """Return the same result, compared with a reference that answered the same samples."""
        found: dict[str, list[float]] = {}
        for own, other in zip(self.answers, reference.answers, strict=True):
            found.setdefault(own.task, []).append(own.score - other.score)
        each = [score_of(task, self.mean.length, of_task) for task, of_task in found.items()]
        whole = mean_of(each, self.mean.length)
        compared = Comparison(reference.scores, reference.mean, each, whole)
        return dataclasses.replace(self, against=compared)


@dataclass
class LongBenchTally:
    """The answers so far, to prompts of up to `length` tokens, answer included."""

    length: int
    answers: list[Answer] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Mean score of all answers so far."""
        return sum(answer.score for answer in self.answers) / len(self.answers)

    def result(self) -> LongBenchResult:
        """Return the scores of the answers; there must be at least one."""
        found: dict[str, list[float]] = {}
        for answer in self.answers:
            found.setdefault(answer.task, []).append(answer.score)
        each = [score_of(task, self.length, of_task) for task, of_task in found.items()]
        return LongBenchResult(each, mean_of(each, self.length), self.answers)


def load_samples(plan: LongBenchPlan, data_dir: str | None) -> list[Sample]:
    """Return the samples of a plan, task by task.

    In a folder, the rows of a task are in `longbench-<task>.jsonl` or `<task>.jsonl`.

    Raises:
        InputError: A task's rows are not available, or damaged.
    """
    found = []
    for task in plan.tasks:
        files = (f"longbench-{task}.jsonl", f"{task}.jsonl")
        rows = load_rows(task, (HUB, task, "test"), files, data_dir)
        found += [_sample(task, at, row) for at, row in enumerate(rows[: plan.samples])]
    return found


def measure(
    llm: LLM, samples: Sequence[Sample], length: int, together: int
) -> Iterator[LongBenchTally]:
    """Answer samples of at most `length` tokens, `together` at a time; yield the tally each time.

    Samples of one task are answered together.

    Raises:
        InputError: There is no memory for a prompt.
    """
    tally = LongBenchTally(length)
    for group in groups(samples, together):
        prompts = [sample.tokens(llm.tokenizer, length) for sample in group]
        texts = answered(llm, prompts, TASKS[group[0].task].new_tokens)
        tally.answers += [
            Answer(sample.task, sample.index, len(prompt), text, sample.score(text))
            for sample, prompt, text in zip(group, prompts, texts, strict=True)
        ]
        yield tally


def groups(samples: Sequence[Sample], together: int) -> Iterator[list[Sample]]:
    """Yield up to `together` samples of one task at a time."""
    group: list[Sample] = []
    for sample in samples:
        if len(group) == together or (group and group[0].task != sample.task):
            yield group
            group = []
        group.append(sample)
    if group:
        yield group


def _sample(task: str, index: int, row: Row) -> Sample:
    answers = tuple(row.texts("answers"))
    if not answers:
        raise row.wrong("answers", "is empty: there must be a right answer")
    classes = tuple(row.texts("all_classes")) if row.fields.get("all_classes") else ()
    if TASKS[task].metric is scores.share_of_classes and not classes:
        raise row.wrong("all_classes", "must be the list of classes")
    prompt = prompt_of(task, row.text("context"), row.text("input"))
    return Sample(task, index, prompt, answers, classes)


def _without_middle(tokenizer: Tokenizer, tokens: list[int], kept: int) -> str:
    """Return the text of the first and the last half of `kept` tokens."""
    half = kept // 2
    return tokenizer.decode(tokens[:half]) + tokenizer.decode(tokens[-half:])
