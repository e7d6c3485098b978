"""Thinking and calls in every interface, with an engine that says given texts, and tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import speaking
from dialect_writers import TOOLS
from serving import Served, events, served
from serving import real as real_engine
from suffice.dialects.dialect import Dialect
from suffice.dialects.families import CALLS, THINKINGS
from suffice.dialects.reader import Reader
from suffice.engine.work import Delta, TokenLogprob
from suffice.errors import InputError
from suffice.serve.http.text import Text
from suffice.serve.interfaces.sample import Sample
from suffice.text.tokenizer import load_tokenizer

SAID = 'Now.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ош"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": TOOLS["weather"]},
}
CITY = {"city": "Ош"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose marks are text: they are no tokens of the engine that speaks."""
    path = speaking.make(tmp_path_factory.mktemp("speaking"), "qwen3", tokens=False)
    return path


@pytest.fixture
def says(folder: Path, engine_path: None) -> Callable[..., Any]:
    def make(text: str, **more: Any) -> Any:
        return served(folder, options={"says": text, "context": 4096}, **more)

    return make


def joined(found: list[Any], name: str) -> str:
    deltas = [each["choices"][0]["delta"] for each in found if each != "[DONE]" and each["choices"]]
    return "".join(delta.get(name) or "" for delta in deltas)


def test_thinking_in_a_chat(says: Callable[..., Any]) -> None:
    text = f"<think>\nHm, {{1}}.\n</think>\n\n{SAID}"
    asked = {"tools": [TOOL], "max_tokens": len(text) // 10 + 1}
    with says(text) as server:
        whole = server.chat(**asked).json()
        found = events(server.chat(stream=True, stream_options={"include_usage": True}, **asked))
        hidden = server.chat(include_reasoning=False, **asked).json()
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "Hm, {1}."
    assert message["content"] == "Now."
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == CITY
    assert joined(found, "reasoning_content") == joined(found, "reasoning") == "Hm, {1}."
    assert joined(found, "content") == "Now."
    for usage in (whole["usage"], found[-2]["usage"], hidden["usage"]):
        # Marks are no tokens here, so it depends on what has come together with them.
        thought = usage["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < thought < usage["completion_tokens"]
    assert "reasoning" not in hidden["choices"][0]["message"]
    assert hidden["choices"][0]["message"]["content"] == "Now."


@pytest.mark.parametrize(
    ("end", "calls", "text"),
    [
        (("stop", "x"), ["weather"], ""),  # a text that the request gives
        (("length", None), ["weather"], ""),
        (("stop", 7), [], '{"name": "weather", "arguments":'),  # the model's own end
    ],
)
def test_a_stop_within_a_call_cuts_it(end: Any, calls: list[str], text: str) -> None:
    found = Sample(Reader(Dialect(calls=CALLS["hermes"]), tools=TOOLS))
    parts = found.take(
        Delta("a", 0, '<tool_call>{"name": "weather", "arguments":', (1,), None, *end)
    )
    assert [part.text for part in parts if part.kind == "call"] == calls
    assert "".join(found.texts) == text and found.end == end


def test_thinking_that_is_left_out_is_not_told_of(folder: Path, says: Callable[..., Any]) -> None:
    with says("<think>Hm.</think>Yes.") as server:
        for field in ("logprobs", "return_token_ids"):
            refused = server.chat(include_reasoning=False, **{field: True})
            assert refused.status_code == 400 and f"with {field} is not" in refused.text
            assert refused.json()["error"]["param"] == "include_reasoning"
            assert server.chat(max_tokens=2, **{field: True}).status_code == 200
    sample = Sample(Reader(Dialect(THINKINGS["qwen3"]), opened=True), hidden=True, marks=(7, 8))
    entry = [(TokenLogprob(token, -1.0, 1, "a"),) for token in range(9)]
    for text, tokens, shown in (
        ("Hm", (1, 2), ()),
        ("</think>Y", (8, 3), (3,)),
        ("es<think>", (4, 7), (4,)),
        ("a</think>b", (5, 8, 6), (6,)),
    ):
        scores = tuple(entry[token] for token in tokens)
        parts = sample.take(Delta("a", 0, text, tokens, scores))
        assert all(part.kind == "text" for part in parts)
        assert tuple(sample.new_tokens) == shown
        assert [each[0].token for each in sample.new_entries] == list(shown)
    assert sample.tokens == [3, 4, 6] and len(sample.entries) == 3
    assert sample.thinking_tokens == 6


def test_a_parser_by_name(says: Callable[..., Any]) -> None:
    for text, name, thought, content in (
        ("Hm.</think>Yes.", "deepseek_r1", "Hm.", "Yes."),
        ("[THINK]Hm.[/THINK]Yes.", "mistral", "Hm.", "Yes."),
        ("<think>Hm.</think>Yes.", "none", None, "<think>Hm.</think>Yes."),
    ):
        with says(text, reasoning_parser=name) as server:
            answer = server.chat(max_tokens=len(text) // 10 + 1).json()
        message = answer["choices"][0]["message"]
        assert (message.get("reasoning"), message["content"]) == (thought, content)


def test_thinking_in_responses(says: Callable[..., Any]) -> None:
    text = f"<think>Hm.</think>{SAID}"
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    body = {"input": "hi", "tools": [tool], "max_output_tokens": len(text) // 10 + 1}
    with says(text) as server:
        whole = server.post("/v1/responses", body).json()
        found = events(server.post("/v1/responses", {**body, "stream": True}))
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["reasoning", "message", "function_call"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert json.loads(whole["output"][2]["arguments"]) == CITY
    done = found[-1]["response"]["output"]
    assert [item["type"] for item in done] == kinds
    for name, text in (("reasoning_text", "Hm."), ("output_text", "Now.")):
        deltas = [e["delta"] for e in found if e["type"] == f"response.{name}.delta"]
        assert "".join(deltas) == text
        (end,) = [each for each in found if each["type"] == f"response.{name}.done"]
        assert end["text"] == text
    arguments = [e["delta"] for e in found if e["type"].endswith("arguments.delta")]
    assert len(arguments) > 1 and json.loads("".join(arguments)) == CITY
    numbers = [each["sequence_number"] for each in found]
    assert numbers == list(range(len(numbers)))
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_thinking_in_messages(says: Callable[..., Any]) -> None:
    text = f"<think>Hm.</think>{SAID}"
    tool = {"name": "weather", "input_schema": TOOLS["weather"]}
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    body = {**asked, "max_tokens": len(text) // 10 + 1, "thinking": {"type": "adaptive"}}
    with says(text) as server:
        whole = server.post("/v1/messages", body).json()
        found = events(server.post("/v1/messages", {**body, "stream": True}))
    kinds = [block["type"] for block in whole["content"]]
    assert kinds == ["thinking", "text", "tool_use"]
    assert whole["content"][0]["thinking"] == "Hm." and whole["content"][2]["input"] == CITY
    starts = [e for e in found if e["type"] == "content_block_start"]
    assert [each["content_block"]["type"] for each in starts] == kinds
    assert [each["index"] for each in starts] == [0, 1, 2]
    stops = [each["index"] for each in found if each["type"] == "content_block_stop"]
    assert stops == [0, 1, 2]
    parts = [each["delta"] for each in found if each["type"] == "content_block_delta"]
    assert "".join(part.get("thinking", "") for part in parts) == "Hm."
    assert json.loads("".join(part.get("partial_json", "") for part in parts)) == CITY


def test_earlier_thinking_reaches_the_template(folder: Path) -> None:
    text = Text(load_tokenizer(folder))
    with_it = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "Hm."},
    ]
    from suffice.serve.http.text import Room

    found = text.chat(with_it, Room(1000, "messages"))
    assert "<think>\nHm.\n</think>\n\nb" in text.tokenizer.decode(found.tokens)
    off = text.chat(with_it[:1], Room(1000, "messages"), facts={"enable_thinking": False})
    assert text.tokenizer.decode(off.tokens).endswith("</think>\n\n") and not off.thinking


def test_effort_and_switch_reach_the_template(folder: Path, says: Callable[..., Any]) -> None:
    with says("Yes.") as server:
        counts = [
            server.chat(max_tokens=1, **more).json()["usage"]["prompt_tokens"]
            for more in (
                {},
                {"enable_thinking": False},
                {"reasoning_effort": "none"},
                {"chat_template_kwargs": {"enable_thinking": False}},
                {"enable_thinking": True, "reasoning_effort": "high"},
            )
        ]
    assert counts[0] == counts[4] < counts[1] == counts[2] == counts[3]


@pytest.fixture(scope="module", params=[each for each in speaking.FAMILIES if each != "coder"])
def family(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[str, Served]]:
    name = request.param
    path = speaking.make(tmp_path_factory.mktemp(name), name)
    with real_engine(path) as server:
        yield name, server


def budget(name: str, tokens: int) -> dict[str, Any]:
    """Return a budget of thinking, for families with a token that begins it."""
    thinks = ("qwen3", "deepseek_r1", "glm45")
    return {"thinking_token_budget": tokens} if name in thinks else {}


def test_a_call_that_must_be_made_in_the_models_own_form(family: tuple[str, Served]) -> None:
    name, server = family
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        asked = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
        for seed in range(3):
            more = {**asked, "seed": seed, "max_tokens": 400, **budget(name, 3)}
            whole = server.chat(**more)
            assert whole.status_code == 200, whole.text
            (given,) = whole.json()["choices"]
            message = given["message"]
            assert message["content"] is None, whole.text
            (call,) = message["tool_calls"]
            assert call["function"]["name"] == "weather"
            if given["finish_reason"] == "tool_calls":
                assert "city" in json.loads(call["function"]["arguments"], strict=False)
            found = events(server.chat(stream=True, **more))
            assert joined(found, "reasoning") == message.get("reasoning", "")
            assert not joined(found, "content")
            streamed = [
                part
                for each in found[:-1]
                for part in each["choices"][0]["delta"].get("tool_calls", ())
            ]
            assert streamed[0]["function"]["name"] == "weather"
            arguments = "".join(part["function"]["arguments"] for part in streamed)
            assert arguments == call["function"]["arguments"]


def test_tools_that_are_not_to_be_used(family: tuple[str, Served]) -> None:
    _, server = family
    answer = server.chat(tools=[TOOL], tool_choice="none", max_tokens=8, seed=1).json()
    plain = server.chat(max_tokens=8, seed=1).json()
    assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
    assert "tool_calls" not in answer["choices"][0]["message"]


def test_a_budget_of_messages_is_kept_where_it_can_be(family: tuple[str, Served]) -> None:
    name, server = family
    talk = [{"role": "user", "content": "hello"}]
    thinking = {"type": "enabled", "budget_tokens": 2}
    body = {"messages": talk, "max_tokens": 40, "thinking": thinking, "temperature": 0}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 200, answer.text
    if name == "deepseek_r1":  # whose prompt begins to think
        assert answer.json()["content"][0]["type"] == "thinking"
        assert len(answer.json()["content"]) == 2, "the budget ends it"
    gone = {"left_out": "thinking.budget_tokens"} if name in ("harmony", "gemma4") else None
    assert answer.json().get("metadata") == gone
    asked = server.chat(thinking_token_budget=2, max_tokens=2)
    assert asked.status_code == (400 if gone else 200), "what does not think keeps it"


def test_a_form_begins_where_thinking_ends(family: tuple[str, Served]) -> None:
    name, server = family
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}
    more: dict[str, Any] = {"response_format": form, "max_tokens": 300, "seed": 3}
    if name == "harmony":
        refused = server.chat(thinking_token_budget=4, **more)
        assert refused.status_code == 400 and "no budget" in refused.json()["error"]["message"]
    more |= budget(name, 4)
    answer = server.chat(**more).json()
    (choice,) = answer["choices"]
    if choice["finish_reason"] == "length":  # a random model may never end its analysis
        assert name == "harmony" and not choice["message"]["content"]
        return
    assert choice["message"]["content"] in ('"yes"', '"no"'), answer
    thought = answer["usage"].get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    assert thought <= 6 or name == "harmony", "four tokens and the marks around them"
    if name == "deepseek_r1":
        assert thought >= 4, "its prompt begins to think"


def test_a_cut_at_each_place_loses_nothing(family: tuple[str, Served]) -> None:
    name, server = family
    if name == "harmony":
        pytest.skip("tried by test_reader.py: a random model rarely leaves its analysis")
    asked = {"tools": [TOOL], "tool_choice": "required", "seed": 1, **budget(name, 2)}
    whole = server.chat(max_tokens=200, **asked).json()["choices"][0]["message"]["tool_calls"][0]
    for most in range(1, 16):
        answer = server.chat(max_tokens=most, **asked).json()["choices"][0]
        if answer["finish_reason"] == "length":
            assert answer["message"]["content"] is None or not answer["message"]["content"]
            for call in answer["message"].get("tool_calls", ()):
                assert call["function"]["name"] == "weather"
                arguments = call["function"]["arguments"]
                assert whole["function"]["arguments"].startswith(arguments)


def test_a_form_that_cannot_be_taught_is_refused(words: Path) -> None:
    with pytest.raises(InputError, match=r"--tool-call-parser mistral: .* takes no tools"):
        Text(load_tokenizer(words), calls="mistral")
