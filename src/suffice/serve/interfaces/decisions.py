"""Decisions: answers to closed questions about a text, with the probability of each.

Nothing is generated: the probabilities are those of the labels as the model's next token, after a
conversation that asks for one of them. There are two forms of requests with the same questions.

Source: the `/v1/systemone` of TypeSafe (https://docs.typesafe.ai/api), and OpenAI's Decisions API;
that a chat model answers by its next token's probabilities is SGLang's way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from string import ascii_uppercase, digits

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from suffice.engine.reading import Reading
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front, Job
from suffice.serve.http.text import Room
from suffice.serve.interfaces.fields import Shared
from suffice.serve.interfaces.reading import read
from suffice.serve.interfaces.requests import Ask, room

Label = tuple[str, int]  # and its token
_EACH = 200  # about as many characters has a question
MOST_QUESTIONS, MOST_OPTIONS, MOST_LEVELS = 400, 255, 10
# Labels by the kind of the question; a choice may need more than there are letters.
_NAMES: Mapping[str, Sequence[str]] = {
    "predicate": ("yes", "no"),
    "choice": (*ascii_uppercase, *map("".join, product(ascii_uppercase, repeat=2))),
    "score": digits,
}
_ENDS = {
    "predicate": "Answer with yes or no alone.",
    "choice": "Answer with the letter of one option alone.",
    "score": "Answer with the number of one level alone.",
}


@dataclass(frozen=True)
class Question:
    """A question; `options` are those of a choice, the levels of a score, or yes and no."""

    kind: str
    instructions: str
    options: tuple[str, ...]

    def text(self, state: str, labels: Sequence[str]) -> str:
        """Return what the model is asked about a state."""
        listed = [f"{label}: {option}" for label, option in zip(labels, self.options, strict=True)]
        lines = [] if self.kind == "predicate" and not any(self.options) else listed
        return "\n".join([state, "", self.instructions, *lines, _ENDS[self.kind]])


def confidence(probabilities: Sequence[float]) -> float:
    """Return 1 if one option has all the probability, 0 if all have the same."""
    count = len(probabilities)
    return (count * max(probabilities) - 1) / (count - 1)


def expected(probabilities: Sequence[float]) -> float:
    """Return the mean level by the probabilities of the levels, counted from 0."""
    return sum(level * probability for level, probability in enumerate(probabilities))


async def decided(
    front: Front,
    request: Request,
    body: Shared,
    key: str,
    state: str,
    questions: Mapping[str, Question],
) -> tuple[Job, list[list[float]]]:
    """Return the probabilities of each question's options; the names are for errors.

    Raises:
        Problem: The model cannot be asked, or has too few labels for the options.
    """
    most, size = room(front, body, "questions"), (len(state) + _EACH) * len(questions)

    def encode() -> list[Ask]:
        counts = dict.fromkeys(_NAMES, 0)
        for each in questions.values():
            counts[each.kind] = max(counts[each.kind], len(each.options))
        known = {kind: _labels(front, kind, count, most) for kind, count in counts.items()}
        return [
            _ask(front, state, asked, where, known[asked.kind], most)
            for where, asked in questions.items()
        ]

    with front.job("dec", key, body.request_id) as job:
        asks = await front.text.run(encode, "questions", size)
        found = await read(front, request, job, body, asks, "questions")
        return job, [_shares(logs) for logs in found]


def _shares(logs: NDArray[np.float32]) -> list[float]:
    """Return the probabilities of options among themselves, from their logarithms."""
    largest = float(logs.max())
    weights = [math.exp(float(each) - largest) for each in logs]
    return [weight / sum(weights) for weight in weights]


def _ask(
    front: Front, state: str, question: Question, where: str, known: Sequence[Label], most: Room
) -> Ask:
    """Return a question's tokens, and the labels that are read, of the `known` ones of its kind.

    Raises:
        Problem: The model cannot be asked, or has too few labels; `where` is the question.
    """
    count = len(question.options)
    labels = known[:count]
    if len(labels) < count:
        message = f"{where}: {count} options given; this model has tokens for {len(labels)} labels"
        raise Problem("unsupported", message, param=where)
    text = question.text(state, [label for label, _ in labels])
    tokens = front.text.encode(_asked(front, text, most), most, special=False)
    return tokens, Reading(tuple(token for _, token in labels))


def _asked(front: Front, text: str, most: Room) -> str:
    """Return the conversation that asks for an answer.

    Raises:
        Problem: The model thinks before it answers.
    """
    talk = [{"role": "user", "content": text}]
    found = front.text.shown(talk, most, facts={"enable_thinking": False})
    if front.text.speech.opened(found, None):
        message = "this model thinks before it answers, and its template has no switch for that"
        raise Problem("unsupported", message)
    return found


def _labels(front: Front, kind: str, count: int, most: Room) -> list[Label]:
    """Return at most `count` labels that are one token where the answer begins, each with that."""
    if not count:
        return []
    encode = front.text.tokenizer.encode
    tail = _asked(front, _ENDS[kind], most).rpartition(_ENDS[kind])[2]
    before = encode(tail, special=False)
    tokens = ((label, encode(tail + label, special=False)) for label in _NAMES[kind])
    return list(islice(((label, t[-1]) for label, t in tokens if t[:-1] == before), count))
