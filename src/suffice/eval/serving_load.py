"""What is sent to a server, and when: data sets, concurrency, arrivals."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from suffice.errors import InputError, OptionError
from suffice.eval.questions import QUESTION_SETS, load_questions
from suffice.eval.serving_client import Exchange, Target, exchange

DATASETS = ("random", "shared-prefix", "multi-turn", *QUESTION_SETS)
_FIRST_ID, _LAST_ID = 1000, 9000  # tokens that every usual vocabulary has, none of them special
_WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world"),
    *("school", "state", "family", "student", "group", "country", "problem", "hand", "part"),
    *("place", "case", "week", "company", "system", "program", "question", "work", "number"),
    *("night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact"),
)


@dataclass(frozen=True)
class Load:
    """What to send.

    Attributes:
        requests: Requests, or conversations of `turns` requests each.
        input_len: Tokens of a prompt; words of a message in chats.
        output_len: Tokens that are asked for.
        range_ratio: Lengths are drawn from [(1 - r) * length, (1 + r) * length].
        prefix_len: Tokens that prompts share, of `prefixes` different beginnings.
        concurrency: Most requests at a time; None for no limit.
        rate: Requests per second, at random times; None sends as soon as there is room.
        extra: Further fields of every request.
    """

    dataset: str = "random"
    requests: int = 64
    input_len: int = 128
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 1024
    prefixes: int = 1
    turns: int = 4
    file: Path | None = None
    concurrency: int | None = 8
    rate: float | None = None
    seed: int = 0
    ignore_eos: bool = True
    extra: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            from suffice.errors import unknown

            raise unknown("data set", self.dataset, DATASETS)
        for name in ("requests", "input_len", "output_len", "prefixes", "turns"):
            if getattr(self, name) < 1:
                raise OptionError(name, getattr(self, name), "must be at least 1")
        if not 0 <= self.range_ratio < 1:
            raise OptionError("range_ratio", self.range_ratio, "must be in [0, 1)")
        if self.rate is not None and not self.rate > 0:
            raise OptionError("rate", self.rate, "must be more than 0")
        if self.concurrency is not None and self.concurrency < 1:
            raise OptionError("concurrency", self.concurrency, "must be at least 1")
        if (self.dataset in QUESTION_SETS) != (self.file is not None):
            raise InputError(
                f"the data sets {' and '.join(QUESTION_SETS)}, and they alone, need a file: "
                "--dataset-path"
            )


@dataclass(frozen=True)
class Conversation:
    """Prompts that follow each other: token ids for completions, texts for a chat."""

    turns: tuple[str | tuple[int, ...], ...]
    lengths: tuple[int, ...]

    @property
    def chat(self) -> bool:
        """Whether the turns are messages."""
        return isinstance(self.turns[0], str)


def conversations(load: Load) -> list[Conversation]:
    """Return what is sent; the same seed gives the same.

    Raises:
        InputError: The file cannot be read, or has no questions.
    """
    draw = random.Random(load.seed)

    def length(of: int) -> int:
        low, high = of * (1 - load.range_ratio), of * (1 + load.range_ratio)
        return max(1, round(draw.uniform(low, high)))

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(_FIRST_ID, _LAST_ID) for _ in range(count))

    if load.dataset in QUESTION_SETS:
        assert load.file is not None, "checked"
        return _asked(load.file, load, draw)
    if load.dataset == "multi-turn":
        return [
            Conversation(
                tuple(
                    " ".join(draw.choices(_WORDS, k=length(load.input_len)))
                    for _ in range(load.turns)
                ),
                tuple(length(load.output_len) for _ in range(load.turns)),
            )
            for _ in range(load.requests)
        ]
    starts = [()]
    if load.dataset == "shared-prefix":
        starts = [tokens(load.prefix_len) for _ in range(load.prefixes)]  # type: ignore[misc]
    return [
        Conversation(
            ((*starts[at % len(starts)], *tokens(length(load.input_len))),),
            (length(load.output_len),),
        )
        for at in range(load.requests)
    ]


def _asked(path: Path, load: Load, draw: random.Random) -> list[Conversation]:
    talks = [question.turns for question in load_questions(path)]
    draw.shuffle(talks)
    chosen = [talks[at % len(talks)] for at in range(load.requests)]
    return [Conversation(turns, (load.output_len,) * len(turns)) for turns in chosen]


def body_of(
    load: Load, model: str, talk: Conversation, at: int, history: Sequence[dict[str, str]]
) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a conversation's request number `at`."""
    shared = {
        "model": model,
        "max_tokens": talk.lengths[at],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if load.ignore_eos else {}),
        **dict(load.extra),
    }
    turn = talk.turns[at]
    if isinstance(turn, str):
        messages = [*history, {"role": "user", "content": turn}]
        return "/v1/chat/completions", {**shared, "messages": messages}
    return "/v1/completions", {**shared, "prompt": list(turn)}


async def run(
    target: Target,
    model: str,
    load: Load,
    seconds: float,
    report: Callable[[Exchange], None] = lambda exchange: None,
) -> list[Exchange]:
    """Send a load and return all exchanges, in the order of their end."""
    found: list[Exchange] = []
    room = asyncio.Semaphore(load.concurrency or 2**31)
    arrivals = random.Random(load.seed + 1)

    async def talk(conversation: Conversation) -> None:
        history: list[dict[str, str]] = []
        async with room:
            for at, turn in enumerate(conversation.turns):
                path, body = body_of(load, model, conversation, at, history)
                done = await exchange(target, path, body, seconds)
                found.append(done)
                report(done)
                if done.error is not None:
                    return
                history += [
                    {"role": "user", "content": str(turn)},
                    {"role": "assistant", "content": done.text},
                ]

    tasks = []
    due = time.perf_counter()
    for conversation in conversations(load):
        if load.rate is not None:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += arrivals.expovariate(load.rate)
        tasks.append(asyncio.create_task(talk(conversation)))
    await asyncio.gather(*tasks)
    return found


def warm_up(load: Load, requests: int) -> Load:
    """Return a short load of other prompts of the same kind."""
    return replace(load, requests=requests, seed=load.seed + 12345, rate=None, output_len=4)
