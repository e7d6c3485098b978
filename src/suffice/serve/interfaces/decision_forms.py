"""`POST /v1/decisions` in OpenAI's form and `POST /v1/systemone` in TypeSafe's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from suffice.errors import brief
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front
from suffice.serve.interfaces.decisions import (
    MOST_LEVELS,
    MOST_OPTIONS,
    MOST_QUESTIONS,
    Question,
    confidence,
    decided,
    expected,
)
from suffice.serve.interfaces.fields import Objects, Shared, checked, parsed
from suffice.serve.interfaces.reading import answer, counts

Kind = TypeVar("Kind", bound=BaseModel)
Content = str | dict[str, Any] | list[Any]  # a text, or what is shown as JSON


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Predicate(_Strict):
    """OpenAI's question whether a statement is true."""

    instructions: str | Objects
    name: str | None = None


class Option(_Strict):
    """An option of OpenAI's choice."""

    value: str | bool
    description: str | None = None


class Choice(Predicate):
    """OpenAI's question which option fits."""

    choices: list[Option] = Field(min_length=2, max_length=MOST_OPTIONS)


class Level(_Strict):
    """A level of OpenAI's score."""

    label: str
    description: str | None = None


class Score(Predicate):
    """OpenAI's question which level fits."""

    levels: list[Level] = Field(min_length=2, max_length=MOST_LEVELS)


class Decisions(Shared):
    """The fields of a request in OpenAI's form."""

    input: str | Objects
    questions: Objects = Field(min_length=1, max_length=MOST_QUESTIONS)


class Sides(_Strict):
    """What the answers to TypeSafe's question of yes or no mean."""

    true: Content = ""
    false: Content = ""


class Noul(_Strict):
    """TypeSafe's question of yes or no."""

    instructions: Content = ""
    criteria: Sides = Field(default_factory=Sides)


class NamedChoice(_Strict):
    """TypeSafe's choice: a description, or null, by label."""

    instructions: Content = ""
    criteria: dict[str, Content | None] = Field(min_length=2, max_length=MOST_OPTIONS)


class Scale(_Strict):
    """TypeSafe's score: what each level means."""

    instructions: Content = ""
    criteria: list[Content] = Field(min_length=2, max_length=MOST_LEVELS)


class SystemOne(Shared):
    """The fields of a request in TypeSafe's form."""

    state: Content
    questions: dict[str, dict[str, Any]] = Field(min_length=1, max_length=MOST_QUESTIONS)


_OPENAI: Mapping[str, type[Predicate]] = {
    "predicate": Predicate,
    "choice": Choice,
    "score": Score,
}
_TYPESAFE: Mapping[str, type[Noul | NamedChoice | Scale]] = {
    "noul": Noul,
    "choice": NamedChoice,
    "score": Scale,
}


async def decide(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer questions in OpenAI's form.

    Raises:
        Problem: They cannot be answered.
    """
    body = parsed(raw, Decisions, allow_unknown=front.settings.allow_unknown_fields)
    model = front.check_model(body.model)
    asked = {f"questions[{at}]": each for at, each in enumerate(body.questions)}
    read = {where: _read(where, each, _OPENAI) for where, each in asked.items()}
    questions = {where: _question(where, each) for where, each in read.items()}
    state = _state(body.input)
    job, found = await decided(front, request, body, key, state, questions)
    answers = [_answer(each, shares) for each, shares in zip(read.values(), found, strict=True)]
    used = counts(job)
    tokens, details = used["prompt_tokens"], used["prompt_tokens_details"]
    usage = {
        "input_tokens": tokens,
        "input_tokens_details": {**details, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens,
    }
    return answer(job, {"model": model, "answers": answers, "usage": usage})


async def system_one(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer questions in TypeSafe's form.

    Raises:
        Problem: They cannot be answered.
    """
    body = parsed(raw, SystemOne, allow_unknown=front.settings.allow_unknown_fields)
    model = front.check_model(body.model)
    read = {
        name: _read(f"questions.{name}", each, _TYPESAFE) for name, each in body.questions.items()
    }
    questions = {f"questions.{name}": _named(each) for name, each in read.items()}
    job, found = await decided(front, request, body, key, _shown(body.state), questions)
    pairs = zip(read.items(), found, strict=True)
    answers = {name: _named_answer(each, shares) for (name, each), shares in pairs}
    usage = {"input_tokens": counts(job)["prompt_tokens"], "output_tokens": 0}
    return answer(job, {"model": model, "answers": answers, "usage": usage})


def _read(where: str, given: Mapping[str, Any], kinds: Mapping[str, type[Kind]]) -> Kind:
    """Return a question as its type has it.

    Raises:
        Problem: The type or a field is unknown, or has another value.
    """
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        message = f"{where}: the type {brief(kind)} must be one of {', '.join(kinds)}"
        raise Problem("invalid_value", message, param=where)
    try:
        return checked({name: each for name, each in given.items() if name != "type"}, kinds[kind])
    except Problem as problem:
        raise Problem(problem.code, f"{where}: {problem.message}", param=where) from None


def _question(where: str, given: Predicate) -> Question:
    """Return OpenAI's question.

    Raises:
        Problem: Two choices are the same, or a part is no text.
    """
    instructions = _texts(where, given.instructions)
    if isinstance(given, Score):
        levels = [_described(each.label, each.description) for each in given.levels]
        return Question("score", instructions, tuple(levels))
    if not isinstance(given, Choice):
        return Question("predicate", instructions, ("", ""))
    if len({(type(each.value), each.value) for each in given.choices}) < len(given.choices):
        raise Problem("invalid_value", f"{where}: two choices are the same", param=where)
    options = [_described(_shown(each.value), each.description) for each in given.choices]
    return Question("choice", instructions, tuple(options))


def _answer(given: Predicate, shares: Sequence[float]) -> dict[str, Any]:
    """Return the answer in OpenAI's form."""
    if isinstance(given, Score):
        levels = [
            {"value": at, "label": level.label, "probability": share}
            for at, (level, share) in enumerate(zip(given.levels, shares, strict=True))
        ]
        own = {"score": expected(shares), "probabilities": levels}
        return {"type": "score", "name": given.name, **own, "confidence": confidence(shares)}
    if not isinstance(given, Choice):
        return {"type": "predicate", "name": given.name, "probability": shares[0]}
    pairs = list(zip((each.value for each in given.choices), shares, strict=True))
    options = [{"value": value, "probability": share} for value, share in pairs]
    best = max(pairs, key=lambda pair: pair[1])[0]
    own = {"choice": best, "probabilities": options}
    return {"type": "choice", "name": given.name, **own, "confidence": confidence(shares)}


def _named(given: Noul | NamedChoice | Scale) -> Question:
    """Return TypeSafe's question."""
    instructions = _shown(given.instructions)
    if isinstance(given, Noul):
        sides = _shown(given.criteria.true), _shown(given.criteria.false)
        return Question("predicate", instructions, sides)
    if isinstance(given, Scale):
        return Question("score", instructions, tuple(map(_shown, given.criteria)))
    told = [
        _described(name, None if each is None else _shown(each))
        for name, each in given.criteria.items()
    ]
    return Question("choice", instructions, tuple(told))


def _named_answer(given: Noul | NamedChoice | Scale, shares: Sequence[float]) -> dict[str, Any]:
    """Return the answer in TypeSafe's form."""
    if isinstance(given, Noul):
        return {"type": "noul", "noul": shares[0]}
    if isinstance(given, Scale):
        legend = {str(at): each for at, each in enumerate(given.criteria)}
        own = {"score": expected(shares), "legend": legend}
        by_name = dict(zip(legend, shares, strict=True))
    else:
        by_name = dict(zip(given.criteria, shares, strict=True))
        own = {"choice": max(by_name, key=by_name.__getitem__)}
    kind = "score" if isinstance(given, Scale) else "choice"
    return {"type": kind, **own, "probabilities": by_name, "confidence": confidence(shares)}


def _described(name: str, description: str | None) -> str:
    return f"{name} - {description}" if description else name


def _shown(value: Any) -> str:
    """Return a text as it is, and other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _state(given: str | Sequence[Mapping[str, Any]]) -> str:
    """Return what OpenAI's questions are about, as a text; of several messages, who said what.

    Raises:
        Problem: A part is no text.
    """
    if isinstance(given, str):
        return given
    found = []
    for at, message in enumerate(given):
        where, role = f"input[{at}]", message.get("role")
        if not isinstance(role, str) or message.get("type", "message") != "message":
            raise Problem("unsupported", f"{where}: must be a message with a role", param=where)
        text = _texts(where, message.get("content"))
        found.append(text if len(given) == 1 else f"{role}: {text}")
    return "\n\n".join(found)


def _texts(where: str, given: Any) -> str:
    """Return a text, or the texts of parts.

    Raises:
        Problem: A part is no text.
    """
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else [given]
    found = [each.get("text") if isinstance(each, dict) else None for each in parts]
    if not all(isinstance(text, str) for text in found):
        message = f"{where}: must be a text, or parts of type 'input_text' with a 'text'"
        raise Problem("unsupported", message, param=where)
    return "\n".join(map(str, found))
