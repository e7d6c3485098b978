"""Which calls may be made: strict tools, some of the tools, one call, a call or a form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import speaking
from serving import Served, events, served
from serving import real as real_engine
from suffice.serve.errors import Problem
from suffice.serve.interfaces.response_tools import Asked
from suffice.serve.interfaces.tools import Tools
from suffice.text.tokenizer import load_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"zone": {"enum": ["utc", "cet"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
TIME: dict[str, Any] = {"name": "time", "parameters": SCHEMA}
STOP: dict[str, Any] = {"name": "stop", "parameters": {"type": "object", "properties": {}}}
FORM = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}


def tool(function: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**function, **more}}


def some(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speaking.make(tmp_path_factory.mktemp("choices"), "qwen3")


@pytest.fixture(scope="module")
def real(folder: Path) -> Iterator[Served]:
    with real_engine(folder) as server:
        yield server


@pytest.fixture(scope="module")
def wants(folder: Path) -> dict[str, Any]:
    """The fields by which a random model begins a call, and after it another one."""
    begin = load_tokenizer(folder).whole()["<tool_call>"]
    return {"logit_bias": {str(begin): 60}, "seed": 1, "max_tokens": 300}


def calls_of(answer: Any) -> list[tuple[str, str]]:
    (choice,) = answer.json()["choices"]
    calls = choice["message"].get("tool_calls", ())
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_a_call_of_a_strict_tool_obeys_its_schema(real: Served, wants: dict[str, Any]) -> None:
    tools = [tool(TIME, strict=True)]
    for stream in (False, True):
        asked = {"tools": tools, "parallel_tool_calls": False, "stream": stream, **wants}
        answer = real.chat("hello", **asked)
        if not stream:
            ((name, given),) = calls_of(answer)
            assert name == "time" and json.loads(given)["zone"] in ("utc", "cet")
            assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
            continue
        found = [each["choices"][0] for each in events(answer)[:-1]]
        parts = [part for each in found for part in each["delta"].get("tool_calls", ())]
        assert "".join(part["function"]["arguments"] for part in parts) == given
        assert found[-1]["finish_reason"] == "tool_calls"
    several = calls_of(real.chat("hello", tools=tools, **wants))
    assert len(several) > 1 and {name for name, _ in several} == {"time"}
    free = real.chat("hello", tools=[tool(TIME)], **wants)
    assert not calls_of(free) and "utc" not in free.text, "a random model writes no call"


def test_a_strict_tool_leaves_an_answer_free(real: Served) -> None:
    plain, strict = (
        real.chat("hello", tools=[tool(TIME, strict=value)], seed=3, max_tokens=20).json()
        for value in (False, True)
    )
    message = strict["choices"][0]["message"]
    assert message == plain["choices"][0]["message"] and message["content"]
    assert strict["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


def test_only_tools_that_are_allowed_are_called(real: Served, wants: dict[str, Any]) -> None:
    tools = [tool(TIME), tool(STOP)]
    for mode, more in (("auto", wants), ("required", {"seed": 1, "max_tokens": 300})):
        asked = {"tools": tools, "tool_choice": some(mode, "stop"), "parallel_tool_calls": False}
        ((name, _),) = calls_of(real.chat("hello", **asked, **more))
        assert name == "stop"
    every = real.chat("hello", tools=tools, max_tokens=1).json()["usage"]["prompt_tokens"]
    narrow = real.chat("hello", tools=tools, tool_choice=some("auto", "stop"), max_tokens=1)
    assert narrow.json()["usage"]["prompt_tokens"] == every, "the prompt tells of all tools"
    body = {
        "input": "hello",
        "max_output_tokens": 300,
        "tools": [{"type": "function", **TIME}, {"type": "function", **STOP}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "stop"}],
        },
    }
    kinds = [
        (item["type"], item.get("name"))
        for item in real.post("/v1/responses", body).json()["output"]
    ]
    assert kinds and set(kinds) <= {("function_call", "stop"), ("reasoning", None)}


def test_an_answer_calls_a_tool_or_has_its_form(real: Served, wants: dict[str, Any]) -> None:
    asked = {"tools": [tool(TIME)], "response_format": FORM, "parallel_tool_calls": False}
    ((name, given),) = calls_of(real.chat("hello", **asked, **wants))
    assert name == "time" and json.loads(given)["zone"] in ("utc", "cet")
    no = {**wants, "logit_bias": dict.fromkeys(wants["logit_bias"], -100)}
    plain = real.chat("hello", **asked, **no, thinking_token_budget=2).json()
    assert plain["choices"][0]["message"]["content"] in ('"yes"', '"no"')


def test_messages_have_strict_tools_too(real: Served, folder: Path) -> None:
    tools = [
        {"name": "time", "input_schema": {"type": "object", "properties": {"a": {"type": "x"}}}}
    ]
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "tools": tools}
    assert real.post("/v1/messages", body).status_code == 200
    tools[0]["strict"] = True  # type: ignore[assignment]
    error = real.post("/v1/messages", body).json()["error"]
    assert error["message"] == "the grammar is bad: Invalid type: x"


def test_one_call_is_given_where_several_are_not_wanted(tmp_path: Path, engine_path: None) -> None:
    folder = speaking.make(tmp_path / "model", "qwen3", tokens=False)
    call = '<tool_call>\n{"name": "%s", "arguments": {}}\n</tool_call>\n'
    said = call % "stop" + call % "time" + "Now."
    with served(folder, options={"says": said, "context": 4096}) as server:
        asked = {"tools": [tool(STOP), tool(TIME)], "max_tokens": len(said) // 10 + 1}
        for parallel, names in ((None, ["stop", "time"]), (False, ["stop"])):
            answer = server.chat(parallel_tool_calls=parallel, **asked)
            assert [name for name, _ in calls_of(answer)] == names
            assert answer.json()["choices"][0]["message"]["content"] == "Now."
            found = events(server.chat(parallel_tool_calls=parallel, stream=True, **asked))
            deltas = [each["choices"][0]["delta"] for each in found[:-1]]
            parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
            assert {part["index"] for part in parts} == set(range(len(names)))


@pytest.mark.parametrize(
    "choice",
    [
        some("auto"),
        some("auto", "other"),
        some("none", "time"),
        {"type": "allowed_tools", "allowed_tools": []},
        {"type": "allowed_tools"},
    ],
)
def test_choices_that_allow_nothing_known_are_refused(choice: Any) -> None:
    with pytest.raises(Problem, match="'mode': 'auto' or 'required'") as refused:
        Tools([tool(TIME)], choice, True)
    assert refused.value.param == "tool_choice"


def test_whether_a_tool_is_strict_is_true_or_false() -> None:
    with pytest.raises(Problem, match=r"tools\[0\]: strict must be true or false, not 'yes'"):
        Tools([tool(TIME, strict="yes")], None, True)
    assert Tools([tool(TIME, strict=True)], None, True).given == [tool(TIME)]
    assert Tools([tool(TIME, strict=True)], "none", True).held(form=True) is None
    assert Tools([tool(TIME, strict=True), tool(STOP)], some("auto", "stop"), True).binding


def test_choices_of_responses() -> None:
    asked = Asked.of([{"type": "function", **TIME}, {"type": "web_search"}])
    named = {"type": "function", "function": {"name": "time"}}
    given = {"type": "allowed_tools", "mode": "auto"}
    time = {"type": "function", "name": "time"}
    found = asked.choice({**given, "tools": [time, {"type": "web_search"}]})
    assert found == {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert asked.choice({**given, "tools": [{"type": "web_search"}]}) == "none"
    assert asked.choice(time) == named and asked.choice("required") == "required"
    nothing = Asked.of([{"type": "web_search"}])
    assert nothing.choice("required") is None and nothing.choice("none") == "none"
    assert Asked.of([]).choice("required") == "required", "which is then refused"
