"""RULER's needle-in-a-haystack tasks: retrieving facts from long prompts.

From Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?".
A needle is a sentence that assigns a value to a key. The question asks for the values of some keys.
A sample's score is the percentage of expected values in its answer, compared without case.

    task             haystack       key     value    keys  values of each  asked for
    niah_single_1    noise          words   numbers     1               1          1
    niah_single_2    essay          words   numbers     1               1          1
    niah_single_3    essay          words   uuids       1               1          1
    niah_multikey_1  essay          words   numbers     4               1          1
    niah_multikey_2  other needles  words   numbers     1               1          1
    niah_multikey_3  other needles  uuids   uuids       1               1          1
    niah_multivalue  essay          words   numbers     1               4          1
    niah_multiquery  essay          words   numbers     4               1          4

A sample has the largest haystack for which prompt, template and answer fit its length. It is
determined by seed, task, length and index alone. The essay and the words of the keys are our own:
scores can be compared with each other, but only roughly with published ones.
"""

from __future__ import annotations

import itertools
import random
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from suffice.errors import InputError, unknown
from suffice.eval.answers import Score, answered, mean_of, score_of
from suffice.eval.ruler_text import (
    DEPTHS,
    NEEDLE,
    Essay,
    Needle,
    Needles,
    Noise,
    drawn_beside,
    filled,
    question,
)

if TYPE_CHECKING:
    from suffice.engine.llm import LLM
    from suffice.engine.protocol import Tokenizer

NEW_TOKENS = 128  # maximum length of an answer


@dataclass(frozen=True)
class Task:
    """Kinds and numbers of needles, and the haystack; see the module's table."""

    haystack: str
    key: str = "words"
    value: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


TASKS = {
    "niah_single_1": Task("noise"),
    "niah_single_2": Task("essay"),
    "niah_single_3": Task("essay", value="uuids"),
    "niah_multikey_1": Task("essay", keys=4),
    "niah_multikey_2": Task("needles"),
    "niah_multikey_3": Task("needles", key="uuids", value="uuids"),
    "niah_multivalue": Task("essay", values=4),
    "niah_multiquery": Task("essay", keys=4, queries=4),
}


@dataclass(frozen=True)
class RulerPlan:
    """Samples to run: `samples` of each task at each length in tokens, `together` at a time.

    Raises:
        InputError: A task is unknown, a task or length is repeated, or a number is out of range.
    """

    tasks: Sequence[str]
    lengths: Sequence[int]
    samples: int
    seed: int = 0
    together: int = 8

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise unknown("task", task, (*TASKS, "all"))
        for name, given in (("--tasks", self.tasks), ("--lengths", self.lengths)):
            twice = next((each for at, each in enumerate(given) if each in given[:at]), None)
            if twice is not None:
                raise InputError(f"{name}: {twice} is given twice; give it once")
        if self.samples < 1:
            raise InputError(f"--samples={self.samples}: must be at least 1 of each task")
        if self.together < 1:
            raise InputError(f"--batch-size={self.together}: must be at least 1 prompt")

    @property
    def total(self) -> int:
        """Number of samples."""
        return len(self.tasks) * len(self.lengths) * self.samples

    def drafts(self) -> Iterator[Draft]:
        """Yield all samples, length by length."""
        for length, task in itertools.product(self.lengths, self.tasks):
            for index in range(self.samples):
                yield Draft(task, length, index, self.seed)


class Draft:
    """A sample without a haystack size: needles, depths and questions, chosen at random."""

    def __init__(self, name: str, length: int, index: int, seed: int) -> None:
        self.name, self.length, self.index = name, length, index
        task = TASKS[name]
        sample_seed = f"{seed}/{name}/{length}/{index}"
        chance = random.Random(sample_seed)
        taken: set[str] = set()
        keys = _distinct(task.keys, task.key, taken, chance)
        values = _distinct(task.keys * task.values, task.value, taken, chance)
        depths = _depths(task, len(values), chance)
        owners = [key for key in keys for _ in range(task.values)]
        self.needles = list(map(Needle, owners, values, depths))
        queries = keys[: task.queries]  # no bias: keys and depths are in random order
        self.expected = tuple(n for query in queries for n in self.needles if n.key == query)
        self.haystack = _haystack(task, taken, sample_seed)
        self._prompt, self._prefix = question(task.value, queries, len(self.expected))
        self._sentences = [
            (n.depth, NEEDLE.format(values=task.value, key=n.key, value=n.value))
            for n in self.needles
        ]

    def text(self, size: int) -> str:
        """Return the prompt with a haystack of `size` lines, or `size` words of an essay."""
        pieces = filled(self.haystack.pieces(size), self._sentences)
        return self._prompt.format(context=self.haystack.joint.join(pieces))

    def tokens(self, tokenizer: Tokenizer, size: int) -> list[int]:
        """Return the tokens of the prompt; it ends with the beginning of the answer."""
        text = self.text(size)
        if not tokenizer.has_chat_template:
            return tokenizer.encode(f"{text} {self._prefix}")
        message = {"role": "user", "content": text}
        start = tokenizer.chat([message], add_generation_prompt=True)
        return start + tokenizer.encode(self._prefix, special=False)

    def fitted(self, tokenizer: Tokenizer) -> list[int]:
        """Return the longest prompt that leaves room for the answer; call `check` first."""
        room = self.length - NEW_TOKENS
        size = largest(lambda size: len(self.tokens(tokenizer, size)) <= room)
        return self.tokens(tokenizer, size)


@dataclass(frozen=True)
class Answer:
    """A model's answer, and the expected needles with their depths."""

    task: str
    length: int
    index: int
    prompt_tokens: int
    expected: tuple[Needle, ...]
    text: str
    score: float


@dataclass(frozen=True)
class RulerResult:
    """The score of each task at each length, the means over tasks, and the overall mean."""

    scores: list[Score]
    means: list[Score]
    mean: Score
    answers: list[Answer]


@dataclass
class RulerTally:
    """The answers so far."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Mean score of all answers so far."""
        return statistics.fmean(answer.score for answer in self.answers)

    def result(self) -> RulerResult:
        """Return the scores of the answers; there must be at least one."""
        cells: dict[tuple[int, str], list[float]] = {}
        for answer in self.answers:
            cells.setdefault((answer.length, answer.task), []).append(answer.score)
        scores = [score_of(task, length, found) for (length, task), found in cells.items()]
        lengths = dict.fromkeys(score.length for score in scores)
        means = [mean_of([s for s in scores if s.length == length], length) for length in lengths]
        return RulerResult(scores, means, mean_of(scores, None), self.answers)


def check(plan: RulerPlan, tokenizer: Tokenizer, context: int) -> None:
    """Refuse lengths that no prompt can have.

    Raises:
        InputError: A length exceeds the context, or is too short for template and needles.
    """
    longest = max(plan.lengths)
    if longest > context:
        raise InputError(
            f"--lengths={longest}: must not be more than the context length, {context}"
        )
    for draft in plan.drafts():
        least = len(draft.tokens(tokenizer, 1)) + NEW_TOKENS
        if least > draft.length:
            raise InputError(
                f"--lengths={draft.length}: too short for {draft.name}, whose template, needles "
                f"and {NEW_TOKENS} new tokens take {least}"
            )


def measure(llm: LLM, plan: RulerPlan) -> Iterator[RulerTally]:
    """Ask all questions, several at a time; yield the tally after each group.

    Raises:
        InputError: There is no memory for a prompt.
    """
    tally = RulerTally()
    drafts = plan.drafts()
    while group := list(itertools.islice(drafts, plan.together)):
        prompts = [draft.fitted(llm.tokenizer) for draft in group]
        texts = answered(llm, prompts, NEW_TOKENS)
        for draft, prompt, text in zip(group, prompts, texts, strict=True):
            tally.answers.append(_answer(draft, len(prompt), text))
        yield tally


def contained(text: str, values: Sequence[str]) -> float:
    """Return the percentage of `values` that a text contains, ignoring case."""
    return 100 * sum(value.lower() in text.lower() for value in values) / len(values)


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest size that fits, 0 if 1 does not; `fits` must be monotonic."""
    high = 1
    while fits(high):
        high *= 2
    low = high // 2
    return low + bisect_left(range(low + 1, high), True, key=lambda size: not fits(size))


def _distinct(count: int, kind: str, taken: set[str], chance: random.Random) -> list[str]:
    """Return random keys or values that are not in `taken`, and add them to it."""
    found = []
    for _ in range(count):
        found.append(drawn_beside(taken, kind, chance))
        taken.add(found[-1])
    return found


def _depths(task: Task, count: int, chance: random.Random) -> list[float]:
    if task.haystack == "essay":
        return [float(depth) for depth in chance.sample(DEPTHS, count)]
    return [100 * chance.random() for _ in range(count)]


def _haystack(task: Task, taken: set[str], seed: str) -> Noise | Essay | Needles:
    if task.haystack == "needles":
        return Needles(task.key, task.value, taken, f"{seed}/haystack")
    return Essay() if task.haystack == "essay" else Noise()


def _answer(draft: Draft, tokens: int, text: str) -> Answer:
    score = contained(text, [needle.value for needle in draft.expected])
    return Answer(draft.name, draft.length, draft.index, tokens, draft.expected, text, score)
