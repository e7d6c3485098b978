"""What one client may not do to another, and odd values that reach the engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving import Served, real
from suffice.engine.work import TokenLogprob
from suffice.serve.interfaces.logprobs import of_chat, of_completion

CHAT = "/v1/chat/completions"


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def test_a_key_cancels_only_its_own_requests(serving: Callable[..., Any], tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    body = {"messages": [{"role": "user", "content": "hello"}], "request_id": "mine"}
    settings = {"api_keys": ("first", "second"), "options": {"hold": str(hold)}}
    with serving(**settings) as server, ThreadPoolExecutor() as pool:
        under_way = pool.submit(server.client.post, CHAT, json=body, headers=key("first"))
        while "mine" not in server.front.jobs:
            assert not under_way.done()
        answer = server.client.delete("/v1/requests/mine", headers=key("second"))
        assert answer.status_code == 404 and not under_way.done()
        answer = server.client.delete("/v1/requests/mine", headers=key("first"))
        assert answer.status_code == 200 and under_way.result().status_code == 499


def test_a_part_of_a_key_is_no_key(serving: Callable[..., Any]) -> None:
    whole = "a-key-of-several-words"
    with serving(api_keys=(whole,)) as server:
        assert server.client.get("/v1/models", headers=key(whole)).status_code == 200
        for given in ("a", whole[:-1], f"{whole}1", whole[1:], f"{whole[:-1]}z"):
            assert server.client.get("/v1/models", headers=key(given)).status_code == 401, given


@pytest.mark.parametrize(
    "name", ["é\n", "a\r\nX-Evil: 1", "a\0b", "\U0001f600", "", "a b", "a" * 129]
)
def test_ids_are_plain(server: Served, name: str) -> None:
    answer = server.chat(request_id=name)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "request_id"


def test_deep_arguments_of_templates(server: Served) -> None:
    deep: dict[str, Any] = {}
    for _ in range(600):
        deep = {"a": deep}
    assert server.chat(chat_template_kwargs={"x": deep}).status_code == 400
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    assert server.chat(tools=[tool]).status_code == 400
    assert server.chat().status_code == 200


def test_the_largest_values_reach_the_sampler(words: Path) -> None:
    """A value that it cannot hold would end the step, and everybody's requests with it."""
    largest = {"top_k": 2**31 - 1, "seed": 2**64 - 1, "max_tokens": 2, "min_p": 1.0}
    with real(words) as server:
        assert server.chat(**largest).status_code == 200
        for wrong in ({"top_k": 2**31}, {"seed": 2**64}, {"top_k": 2**40}):
            assert server.chat(**wrong).status_code == 400


def test_the_chosen_token_is_among_the_likely_ones() -> None:
    best = TokenLogprob(5, -0.1, 1, "a")
    second, third = TokenLogprob(6, -2.0, 2, "b"), TokenLogprob(7, -3.0, 3, "c")

    class Bytes:
        def token_bytes(self, token: int, text: str) -> list[int]:
            return list(os.fsencode(text))

    for entry, top, likely in (
        ((best, second, third), 2, ["a", "b"]),
        ((second, best), 1, ["a"]),
        ((third, best, second), 2, ["a", "b"]),
        ((best,), 0, []),
    ):
        (found,) = of_chat(Bytes(), [entry], top)["content"]  # type: ignore[arg-type]
        assert found["token"] == entry[0].text
        assert [each["token"] for each in found["top_logprobs"]] == likely
        (tops,) = of_completion([entry], top, 0)["top_logprobs"]
        assert set(tops) == {*likely, entry[0].text}
