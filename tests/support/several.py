"""What tests of several models at one address ask and read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from serving import Served

CHAT = "/v1/chat/completions"
Several = Callable[..., contextlib.AbstractContextManager[Served]]


def ask(server: Served, model: str | None, **fields: Any) -> Any:
    named = {} if model is None else {"model": model}
    return server.chat(**named, max_tokens=8, **fields)


def said(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    text = answer.json()["choices"][0]["message"]["content"]
    return str(text.split()[0])


def content(chunks: list[Any]) -> str:
    deltas = [each["choices"][0]["delta"] for each in chunks]
    return "".join(each.get("content", "") for each in deltas)


def states(server: Served) -> dict[str, str]:
    cards = server.client.get("/v1/models").json()["data"]
    return {card["id"]: card["status"]["value"] for card in cards}
