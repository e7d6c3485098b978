"""`/v1/completions`: completion.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scripted_engine import OUT_OF_MEMORY, text_of, token_of
from serving import Served, events
from suffice.serve.errors import Problem
from suffice.serve.interfaces.completion import MOST_PROMPTS, split

PATH = "/v1/completions"


def expected(prompt: list[int], seed: int, count: int, sample: int = 0) -> str:
    return "".join(text_of(token_of(tuple(prompt), seed, sample, at)) for at in range(count))


def test_tokens_in_text_out(server: Served) -> None:
    body = server.post(PATH, {"prompt": [1, 2, 3], "seed": 7, "max_tokens": 4}).json()
    (choice,) = body["choices"]
    assert body["object"] == "text_completion" and choice["text"] == expected([1, 2, 3], 7, 4)
    assert body["usage"]["prompt_tokens"] == 3


def test_sixteen_tokens_unless_asked(server: Served) -> None:
    body = server.post(PATH, {"prompt": "hello"}).json()
    assert body["usage"]["completion_tokens"] == 16
    body = server.post(PATH, {"prompt": "hello", "max_tokens": None}).json()
    assert body["usage"]["completion_tokens"] == 16, "null is as if it were not given"


def test_several_prompts(server: Served) -> None:
    prompts = [[1, 2], [3, 4], [5]]
    fields = {"prompt": prompts, "n": 2, "seed": 3, "max_tokens": 2}
    body = server.post(PATH, fields).json()
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == [expected(p, 3, 2, s) for p in prompts for s in range(2)]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    streamed = [""] * 6
    for each in events(server.post(PATH, {**fields, "stream": True}))[:-1]:
        for choice in each["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_echo(server: Served, stream: bool, n: int) -> None:
    fields = {"prompt": ["ab", "cd"], "echo": True, "seed": 1, "max_tokens": 1, "stream": stream}
    answer = server.post(PATH, fields | {"n": n, "temperature": 1.0})
    choices = (
        [choice for each in events(answer)[:-1] for choice in each["choices"]]
        if stream
        else answer.json()["choices"]
    )
    texts = ["".join(c["text"] for c in choices if c["index"] == at) for at in range(2 * n)]
    assert [each[:2] for each in texts] == ["ab"] * n + ["cd"] * n and len(texts[0]) > 2


def test_log_probabilities(server: Served) -> None:
    body = server.post(PATH, {"prompt": [1], "max_tokens": 3, "logprobs": 1, "seed": 1}).json()
    (choice,) = body["choices"]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert found["token_logprobs"] == [-1.0] * 3
    assert found["text_offset"][1] == len(found["tokens"][0])


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"prompt": [1], "suffix": "x"}, "suffix: the model has no tokens for it"),
        ({"prompt": [1], "best_of": 3}, "'best_of' is not supported"),
        ({"prompt": []}, "0 prompts"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [100000]}, "100000 is not a token id"),
        ({"prompt": [True]}, "prompt"),
        ({}, "prompt: is required"),
    ],
)
def test_bad_prompts(server: Served, fields: dict[str, Any], part: str) -> None:
    answer = server.post(PATH, fields)
    assert answer.status_code == 400 and part in answer.json()["error"]["message"], answer.text


def test_no_memory_is_503_or_an_error_in_the_stream(server: Served) -> None:
    fields: dict[str, Any] = {"prompt": [1, OUT_OF_MEMORY]}
    for stream in (False, True):
        answer = server.post(PATH, {**fields, "stream": stream})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "no_memory"


def test_too_many_prompts() -> None:
    with pytest.raises(Problem, match=f"1 to {MOST_PROMPTS}"):
        split(["a"] * (MOST_PROMPTS + 1))


def test_the_models_defaults_of_sampling(serving: Callable[..., Any]) -> None:
    with serving(default_sampling={"temperature": 0.0}) as server:
        body = server.post(PATH, {"prompt": [1], "n": 2, "max_tokens": 2}).json()
        assert len({choice["text"] for choice in body["choices"]}) == 1, "greedy"


def test_copies_have_the_offsets_of_their_own_text(server: Served) -> None:
    fields = {"prompt": "ab", "n": 2, "temperature": 0, "seed": 1, "logprobs": 1}
    whole = server.post(PATH, fields).json()["choices"]
    streamed: list[list[int]] = [[], []]
    for each in events(server.post(PATH, {**fields, "stream": True}))[:-1]:
        for choice in each["choices"]:
            if choice["logprobs"]:
                streamed[choice["index"]] += choice["logprobs"]["text_offset"]
    assert streamed == [choice["logprobs"]["text_offset"] for choice in whole]
    assert streamed[0] == streamed[1]
