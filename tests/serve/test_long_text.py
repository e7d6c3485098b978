"""Texts that are too long are refused by their length, and nobody waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from serving import Served
from suffice.serve.http.text import MOST_APART
from suffice.serve.interfaces.fields import MOST_ENTRIES, MOST_NUMBERS

LONG = "a " * (3 << 19)  # 3 MiB
TALK = [{"role": "user", "content": LONG}]


@pytest.fixture
def encoded(server: Served, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are made tokens."""
    found: list[str] = []
    tokenizer = server.front.text.tokenizer
    encode = tokenizer.encode

    def noted(text: str, **more: Any) -> list[int]:
        found.append(text)
        return encode(text, **more)

    monkeypatch.setattr(tokenizer, "encode", noted)
    return found


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": [LONG]}, "prompt"),
        ("/v1/completions", {"prompt": LONG, "truncate_prompt_tokens": 4}, "prompt"),
        ("/v1/chat/completions", {"messages": TALK}, "messages"),
        ("/v1/responses", {"input": LONG}, "input"),
        ("/v1/messages", {"messages": TALK, "max_tokens": 4}, "messages"),
        ("/v1/messages/count_tokens", {"messages": TALK}, "messages"),
        ("/tokenize", {"prompt": LONG}, "prompt"),
        ("/tokenize", {"messages": TALK}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}] * 513},
            "messages",
        ),
    ],
)
def test_no_tokens_are_made_of_a_text_that_cannot_fit(
    server: Served, encoded: list[str], path: str, body: dict[str, Any], param: str
) -> None:
    answer = server.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == param and "must be at most" in error["message"]
    assert not encoded


def test_the_message_says_what_is_allowed(server: Served) -> None:
    bound = server.front.text.tokenizer.text_bound()
    assert bound is not None
    most = 512 * bound.longest
    message = server.post("/v1/completions", {"prompt": LONG}).json()["error"]["message"]
    assert message == (
        f"the prompt has {len(LONG)} bytes: must be at most {most}; the context has 512 tokens, "
        f"none of more than {bound.longest} bytes"
    )


def test_a_long_text_is_cut_exactly_and_counted(server: Served) -> None:
    text = "ab!xyz?" * 15_000
    assert len(text) < MOST_APART
    tokens = server.front.text.tokenizer.encode(text)
    counted = server.post("/tokenize", {"prompt": text}).json()
    assert counted["tokens"] == tokens and counted["count"] > 512
    fields = {"max_tokens": 3, "seed": 1}
    cut = server.post("/v1/completions", {"prompt": text, "truncate_prompt_tokens": 9, **fields})
    alone = server.post("/v1/completions", {"prompt": tokens[-9:], **fields})
    assert cut.status_code == 200, cut.text
    assert cut.json()["choices"] == alone.json()["choices"]
    assert cut.json()["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1] * (MOST_NUMBERS + 1)}, "prompt"),
        ({"prompt": [[1]] * (MOST_ENTRIES + 1)}, "prompt"),
        ({"prompt": "a", "stop": ["a"] * (MOST_ENTRIES + 1)}, "stop"),
    ],
)
def test_a_list_that_would_take_long_to_check_is_refused(
    server: Served, fields: dict[str, Any], param: str
) -> None:
    answer = server.post("/v1/completions", fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param
    assert "a list of" in error["message"] and "at most" in error["message"]
