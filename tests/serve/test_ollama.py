"""Ollama's API: ollama.py and ollama_request.py, with its own client where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import speaking
from dialect_writers import TOOLS
from serving import Served, served
from suffice.serve.interfaces.ollama_request import _format

SAID = (
    "<think>Hm.</think>Now.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Ош"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
)
TOOL = {"type": "function", "function": {"name": "weather"}}
LONG = {"num_predict": len(SAID) // 10 + 1}
TALK = [{"role": "user", "content": "hi"}]
GIVEN = [
    {"type": "function", "function": {"name": name, "parameters": TOOLS[name]}}
    for name in ("weather", "stop")
]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory, engine_path: None) -> Iterator[Served]:
    folder = speaking.make(tmp_path_factory.mktemp("speaker"), "qwen3", tokens=False)
    with served(folder, options={"says": SAID, "context": 4096}, served_names=("tiny",)) as found:
        yield found


def lines(server: Served, path: str, body: dict[str, Any]) -> list[Any]:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_chat(speaker: Served) -> None:
    body = {"model": "tiny:latest", "messages": TALK, "tools": GIVEN, "options": LONG}
    found = lines(speaker, "/api/chat", body)
    whole = speaker.post("/api/chat", {**body, "stream": False}).json()
    messages = [each["message"] for each in found]
    assert "".join(each.get("thinking", "") for each in messages) == "Hm."
    assert "".join(each["content"] for each in messages) == "Now."
    calls = [call for each in messages for call in each.get("tool_calls", ())]
    assert [call["function"]["name"] for call in calls] == ["weather", "stop"]
    assert calls[0]["function"]["arguments"] == {"city": "Ош"}
    assert [each["done"] for each in found] == [False] * (len(found) - 1) + [True]
    own = whole["message"]
    assert (own["thinking"], own["content"]) == ("Hm.", "Now.")
    assert [call["function"] for call in own["tool_calls"]] == [call["function"] for call in calls]
    for end in (found[-1], whole):
        assert end["model"] == "tiny" and end["done_reason"] in ("stop", "length")
        assert end["eval_count"] > 3 and end["prompt_eval_count"] > 3
        assert end["created_at"].endswith("Z")


def test_a_prompt(speaker: Served) -> None:
    body = {"model": "tiny", "prompt": "hi", "system": "Be kind.", "options": {"num_predict": 3}}
    found = lines(speaker, "/api/generate", body)
    whole = speaker.post("/api/generate", {**body, "stream": False}).json()
    assert "".join(each["response"] for each in found) == whole["response"]
    assert "".join(each.get("thinking", "") for each in found) == whole["thinking"] == "Hm."
    assert whole["done"] and whole["done_reason"] == "length"
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    same = speaker.post("/v1/chat/completions", {"messages": talk, "max_tokens": 1}).json()
    assert whole["prompt_eval_count"] == same["usage"]["prompt_tokens"]


def test_options_are_those_of_a_chat(server: Served) -> None:
    for options, fields in (
        ({"seed": 3, "num_predict": 4}, {"seed": 3, "max_tokens": 4}),
        ({"seed": 1, "repeat_penalty": 1.1, "num_predict": 4}, {"seed": 1, "max_tokens": 4}),
        ({"num_predict": 9, "stop": ["b"], "seed": 1}, {"max_tokens": 9, "stop": "b", "seed": 1}),
        ({"num_predict": -1, "num_ctx": 100, "num_thread": 8, "seed": 2}, {"seed": 2}),
    ):
        body = {"model": "scripted", "messages": TALK, "stream": False, "options": options}
        found = server.post("/api/chat", body).json()
        plain = server.chat("hi", **fields).json()["choices"][0]["message"]["content"]
        assert found["message"]["content"] == plain


@pytest.mark.parametrize(
    ("path", "fields", "part"),
    [
        ("chat", {"model": "other"}, "the model 'other' is not served here"),
        ("chat", {"options": {"temprature": 1}}, "unknown option 'temprature'. Did you mean"),
        ("chat", {"options": {"mirostat": 2}}, "options.mirostat=2 is not supported here"),
        ("chat", {"options": {"num_ctx": 0}}, "must be a number of at least 1"),
        ("chat", {"tools": [TOOL, TOOL]}, "'weather' is there twice"),
        ("chat", {"options": {"temperature": "x"}}, "temperature"),
        ("chat", {"format": "xml"}, "format: must be 'json' or a schema"),
        ("chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images"),
        ("chat", {"messages": [{"role": "robot", "content": "a"}]}, "unknown role 'robot'"),
        ("chat", {"mesages": 1}, "unknown field 'mesages'"),
        ("generate", {"suffix": "b"}, "'suffix' is not supported here"),
        ("generate", {"images": ["x"]}, "'images' is not supported here"),
        ("show", {"model": "x"}, "is not served here"),
        ("pull", {"model": "x"}, "is not served here"),
        ("show", {"model": ""}, "model: is required"),
    ],
)
def test_what_is_refused(server: Served, path: str, fields: dict[str, Any], part: str) -> None:
    asked = {"messages": TALK} if path == "chat" else {"prompt": "a"} if path == "generate" else {}
    answer = server.post(f"/api/{path}", {"model": "scripted", **asked, **fields})
    assert 400 <= answer.status_code < 500
    assert list(answer.json()) == ["error"] and part in answer.json()["error"]


def test_lists_and_descriptions(speaker: Served) -> None:
    get = speaker.client.get
    for path in ("/api/tags", "/api/ps"):
        (card,) = get(path).json()["models"]
        assert card["name"] == card["model"] == "tiny" and card["details"]["format"] == ""
    assert get("/api/version").json()["version"].count(".") == 2
    shown = speaker.post("/api/show", {"model": "tiny"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["suffice.context_length"] == 4096
    assert "<think>" in shown["template"]
    assert speaker.post("/api/pull", {"name": "tiny"}).json() == {"status": "success"}
    assert speaker.post("/api/create", {"model": "tiny", "from": "a"}).status_code == 501
    loaded = speaker.post("/api/chat", {"model": "tiny"}).json()
    assert loaded["done_reason"] == "load" and loaded["message"]["content"] == ""


def test_forms(serving: Callable[..., Any]) -> None:
    assert _format("json") == {"type": "json_object"}
    schema = {"type": "object"}
    assert _format(schema) == {"type": "json_schema", "json_schema": {"schema": schema}}
    assert _format(None) is None and _format("") is None
    with serving(allow_unknown_fields=True) as other:
        body = {"model": "scripted", "messages": TALK, "options": {"num_predict": 1, "some": 1}}
        assert other.post("/api/chat", body).status_code == 200


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_log_probabilities(server: Served, path: str) -> None:
    asked = {"messages": TALK} if path == "/api/chat" else {"prompt": "hi"}
    body = {"model": "scripted", **asked, "options": {"num_predict": 5, "seed": 1}}
    body |= {"logprobs": True, "top_logprobs": 2}
    whole = server.post(path, {**body, "stream": False}).json()["logprobs"]
    assert [len(each["top_logprobs"]) for each in whole] == [2] * 5
    assert set(whole[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    streamed = [each for line in lines(server, path, body) for each in line.get("logprobs", ())]
    assert streamed == whole
    plain = server.post(path, {**body, "logprobs": False, "top_logprobs": 0, "stream": False})
    assert "logprobs" not in plain.json()
    refused = server.post(path, {**body, "logprobs": None})
    assert "top_logprobs needs logprobs=true" in refused.json()["error"]


def test_its_own_client(speaker: Served, request: pytest.FixtureRequest) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=speaker.url)
    request.addfinalizer(client._client.close)
    asked = {"model": "tiny", "messages": TALK, "tools": GIVEN, "options": LONG}
    whole = client.chat(**asked)
    assert whole.message.content == "Now." and whole.message.thinking == "Hm."
    assert whole.message.tool_calls[0].function.arguments == {"city": "Ош"}
    parts = list(client.chat(stream=True, **asked))
    assert "".join(part.message.content or "" for part in parts) == "Now."
    assert [call.function.name for p in parts for call in p.message.tool_calls or ()] == [
        *("weather", "stop")
    ]
    assert client.list().models[0].model == client.ps().models[0].model == "tiny"
    assert "thinking" in client.show("tiny").capabilities
    assert client.generate(model="tiny", prompt="hi", options=LONG).response.startswith("Now.")
    with pytest.raises(ollama.ResponseError, match="is not served here"):
        client.chat(model="x", messages=TALK)
