"""Requests of all kinds, drawn from a seed, and a client that sends them and may leave early."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world"),
    *("school", "state", "family", "student", "group", "country", "problem", "hand", "part"),
)
NUMBERS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 999},
    "minItems": 2,
    "maxItems": 6,
}
FORMS: tuple[dict[str, Any], ...] = (
    {"structured_outputs": {"regex": "([a-z]{3} ){4,9}"}},
    {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    {"structured_outputs": {"json": NUMBERS}},
)


@dataclass(frozen=True)
class Ask:
    """A request. `leave` is after how many parts of the stream the client goes; None: never."""

    path: str
    body: dict[str, Any]
    leave: int | None = None
    structured: bool = False

    def alone(self) -> Ask:
        """Return the same request as a cold one that nothing disturbs."""
        body = {**self.body, "stream": False, "cache_prompt": False}
        return Ask(self.path, body, None, self.structured)


@dataclass
class Answer:
    """The texts of the samples, why each ended, and the error if there was one."""

    texts: list[str]
    ends: list[str | None]
    status: int = 200
    error: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """Words of shared beginnings and of own parts, tokens of answers, and how many beginnings."""

    shared: int = 300
    own: int = 40
    output: int = 80
    beginnings: int = 5


def draw(seed: int, number: int, sizes: Sizes) -> Ask:
    """Return request `number` of a seed; requests share beginnings, and some come again."""
    rng = random.Random(f"{seed} {number // 2 if number % 4 == 1 else number}")
    shared = random.Random(f"{seed} {rng.randrange(sizes.beginnings)}")
    start = _words(shared, shared.randint(sizes.shared // 4, sizes.shared))
    text = f"{start} {_words(rng, rng.randint(1, sizes.own))}"
    body: dict[str, Any] = {
        "max_tokens": rng.randint(4, sizes.output),
        "seed": rng.randrange(2**31),
        "stream": rng.random() < 0.6,
        "temperature": rng.choice((0, 0, 0.7, 1.0)),
        "ignore_eos": rng.random() < 0.7,
    }
    if rng.random() < 0.2:
        body["n"] = rng.randint(2, 3)
    if rng.random() < 0.2:
        body |= {"top_p": 0.9, "presence_penalty": 0.5}
    if rng.random() < 0.1:
        body["stop"] = ["the", "xyz"]
    structured = rng.random() < 0.15
    if structured:
        body |= rng.choice(FORMS) | {"ignore_eos": False}
    leave = rng.randint(0, 8) if body["stream"] and rng.random() < 0.2 else None
    if rng.random() < 0.6:
        return Ask(CHAT, body | {"messages": _talk(rng, text)}, leave, structured)
    return Ask(COMPLETION, body | {"prompt": text}, leave, structured)


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def _talk(rng: random.Random, text: str) -> list[dict[str, str]]:
    if rng.random() < 0.7:
        return [{"role": "user", "content": text}]
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": _words(rng, 12)},
        {"role": "user", "content": _words(rng, 5)},
    ]


async def send(client: httpx2.AsyncClient, ask: Ask) -> Answer:
    """Send a request and return its answer, up to where the client leaves."""
    count = ask.body.get("n", 1)
    if not ask.body["stream"]:
        response = await client.post(ask.path, json=ask.body)
        return _whole(response.status_code, response.content, count)
    found = Answer([""] * count, [None] * count)
    parts, done = 0, False
    async with client.stream("POST", ask.path, json=ask.body) as response:
        if response.status_code != 200:
            return _whole(response.status_code, await response.aread(), count)
        if ask.leave == 0:
            return found
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            done = line == "data: [DONE]"
            if not done:
                _add(found, json.loads(line[6:]))
            parts += 1
            if ask.leave is not None and parts >= ask.leave:
                return found
    if not done and found.error is None:
        found.error = "the stream was cut"
    return found


def _whole(status: int, content: bytes, count: int) -> Answer:
    body = json.loads(content)
    if status != 200:
        return Answer([""] * count, [None] * count, status, str(body["error"]["message"]))
    texts = [_text(each, "message") for each in body["choices"]]
    return Answer(texts, [each["finish_reason"] for each in body["choices"]], usage=body["usage"])


def _text(choice: dict[str, Any], name: str) -> str:
    return (choice[name].get("content") if name in choice else choice.get("text")) or ""


def _add(found: Answer, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        found.error = str(chunk["error"]["message"])
    for choice in chunk.get("choices", ()):
        at = choice["index"]
        found.texts[at] += _text(choice, "delta")
        found.ends[at] = found.ends[at] or choice["finish_reason"]


def differs(found: Answer, alone: Answer, left: bool) -> bool:
    """Return whether an answer differs from the one alone; of one that was left, what there is."""
    if left:
        pairs: Sequence[tuple[str, str]] = list(zip(found.texts, alone.texts, strict=True))
        return not all(whole.startswith(part) for part, whole in pairs)
    return (found.texts, found.ends) != (alone.texts, alone.ends)
