"""Tool calls: interfaces/tools.py, tool_prompt.py, and in chats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Served, events, served
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.dialects.families import CALLS
from suffice.engine.options import EngineOptions
from suffice.errors import InputError
from suffice.serve.errors import Problem
from suffice.serve.http.text import Room, Text
from suffice.serve.interfaces.tools import Tools
from suffice.serve.settings import ENGINE
from suffice.text.tokenizer import load_tokenizer

CALL = '{"name": "time", "arguments": {"zone": "é}{"}}'
LLAMA = CALL.replace("arguments", "parameters")
TOOL = {
    "type": "function",
    "function": {
        "name": "time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"enum": ["utc", "cet"]}},
            "required": ["zone"],
            "additionalProperties": False,
        },
    },
}
OTHER = {"type": "function", "function": {"name": "stop"}}


@pytest.mark.parametrize(
    ("tools", "choice", "part"),
    [
        ([{"type": "x"}], None, "tools[0]: must be"),
        ([{"type": "function", "function": {}}], None, "has no name"),
        (
            [{"type": "function", "function": {"name": "a", "parameters": []}}],
            None,
            "tools[0]: parameters must be the schema of an object, not []",
        ),
        (
            [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}],
            None,
            "must be the schema of an object",
        ),
        ([TOOL, TOOL], None, "tools: 'time' is there twice"),
        ([TOOL], "sometimes", "must be none, auto or required, or {"),
        ([TOOL], {"type": "function", "function": {"name": "x"}}, "{'name': ...}} of time"),
        ([TOOL], {"type": "function", "function": "time"}, "{'name': ...}} of time"),
        ([], "required", "tool_choice=required needs tools"),
        ([], {"type": "function"}, "tool_choice={'type': 'function'} needs tools"),
        ([], "sometimes", "tool_choice: must be none, auto or required"),
        ([TOOL] * 200, None, "at most 128"),
    ],
)
def test_bad_tools(tools: list[Any], choice: Any, part: str) -> None:
    with pytest.raises(Problem) as refused:
        Tools(tools, choice, True)
    assert part in refused.value.message


def test_no_other_tool_than_the_named_one_is_called() -> None:
    named = {"type": "function", "function": {"name": "time"}}
    tools = Tools([OTHER, TOOL], named, True)
    held = tools.held(form=False)
    assert held == Tools([TOOL], named, True).held(form=False)
    assert held is not None and held.must and not held.several and set(held.schemas) == {"time"}
    assert set(tools.schemas or ()) == {"time", "stop"}


def test_a_required_call_that_is_cut_has_no_content(real: Served) -> None:
    fields = {"tools": [TOOL], "tool_choice": "required", "seed": 2}
    for most in (1, 6, 14):
        whole = real.chat("hello", max_tokens=most, **fields).json()["choices"][0]
        assert whole["finish_reason"] == "length" and whole["message"]["content"] is None
        assert whole["message"]["tool_calls"][0]["function"]["name"] == "time"
        found = events(real.chat("hello", max_tokens=most, stream=True, **fields))
        assert not any(each["choices"][0]["delta"].get("content") for each in found[:-1])
        assert any("tool_calls" in each["choices"][0]["delta"] for each in found[:-1])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["ime", "name", "zone"])
def test_a_required_call_that_a_stop_cuts_is_not_whole(
    real: Served, stop: str, stream: bool
) -> None:
    named = {"type": "function", "function": {"name": "time"}}
    asked = {"tools": [TOOL], "tool_choice": named, "stop": stop, "seed": 2, "stream": stream}
    answer = real.chat("hello", **asked)
    found = events(answer)[:-1] if stream else [answer.json()]
    assert found[-1]["choices"][0]["finish_reason"] == "stop", answer.text
    assert found[-1]["choices"][0]["stop_reason"] == stop
    (call,) = streamed_calls(found) if stream else found[0]["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "time"
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(call["function"]["arguments"])


def streamed_calls(found: list[Any]) -> list[dict[str, Any]]:
    """Return the calls of a stream, put together as clients do it."""
    calls: list[dict[str, Any]] = []
    for each in found:
        for part in each["choices"][0]["delta"].get("tool_calls", ()):
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "function": dict(part["function"])})
            else:
                function = calls[part["index"]]["function"]
                function["arguments"] += part["function"]["arguments"]
    return calls


def with_template(words: Path, folder: Path, template: Any) -> Path:
    shutil.copytree(words, folder)
    for file in folder.glob("chat_template*"):
        file.unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("form", "call", "result"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "<tool_response>\n12\n</tool_response>"),
        ("llama3", LLAMA, "12"),
    ],
)
def test_a_template_without_tools_gets_them_as_text(
    words: Path, form: str, call: str, result: str
) -> None:
    text = Text(load_tokenizer(words), calls=form)
    arguments = '{"zone": "é}{"}'
    called = {"type": "function", "id": "1", "function": {"name": "time", "arguments": arguments}}
    talk = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "12"},
        {"role": "tool", "tool_call_id": "2", "content": "12"},
    ]
    room = Room(1000, "messages")

    def shown(messages: Any, tools: Any) -> str:
        found = text.chat(messages, room, facts={"tools": tools})
        return text.tokenizer.decode(found.tokens)

    found = shown(talk, [TOOL, OTHER])
    assert found.startswith("<|system|>Be kind.\n\nYou can call functions.")
    assert f"{json.dumps(TOOL)}\n{json.dumps(OTHER)}" in found
    said = f"<|assistant|>I look.\n{call}<|end|><|user|>{result}\n{result}<|end|><|assistant|>"
    assert found.endswith(f"<|user|>When?<|end|>{said}")
    assert shown(talk[1:2], [TOOL]).startswith("<|system|>You can call functions.")
    assert shown(talk, None).startswith("<|system|>Be kind.<|end|>")


def test_the_template_for_tools_is_used_with_tools(words: Path, tmp_path: Path) -> None:
    several = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "<tool_call>{{ tools[0]['type'] }}"},
    ]
    tokenizer = load_tokenizer(with_template(words, tmp_path / "a", several))
    text, room = Text(tokenizer), Room(100, "messages")
    talk = [{"role": "user", "content": "a"}]
    found = text.chat(talk, room, facts={"tools": [TOOL]})
    assert tokenizer.decode(found.tokens) == "<tool_call>function"
    assert tokenizer.decode(text.chat(talk, room).tokens) == "plain"
    assert text.speech.taught is None and text.speech.dialect.calls is CALLS["hermes"]


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        ("{{ tools | tojson }}", True),
        ("{% if custom is defined %}{% set tools = custom %}{% endif %}{{ tools }}", True),
        ("{% macro a(tools) %}{{ tools }}{% endmacro %}{{ a(1) }}", False),
        ("{# tools <tool_call> #}I have tools.", False),
        ("{% if %}", False),
    ],
)
def test_whether_a_template_takes_tools(
    words: Path, tmp_path: Path, template: str, takes: bool
) -> None:
    tokenizer = load_tokenizer(with_template(words, tmp_path / "a", template))
    assert tokenizer.takes_tools == takes and (tokenizer.tool_template is not None) == takes


def test_the_tools_of_a_named_form_reach_the_model(real: Served) -> None:
    (one, other) = (
        real.chat("hello", tools=[tool], max_tokens=1, temperature=0).json()["usage"]
        for tool in (TOOL, OTHER)
    )
    plain = real.chat("hello", max_tokens=1).json()["usage"]
    assert one["prompt_tokens"] > other["prompt_tokens"] > plain["prompt_tokens"] + 100


@pytest.fixture(scope="module", params=["hermes", "llama3"])
def real(words: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    options = engine_options(ModelFlags(options=EngineOptions(model=str(words), threads=1)), 4)
    chosen = {"engine": ENGINE, "options": options, "tool_parser": request.param}
    with served(words, model="tiny", **chosen) as found:
        yield found


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
def test_a_call_can_be_required(real: Served, choice: Any) -> None:
    fields = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False, "seed": 2}
    answer = real.chat("hello", **fields)
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls", answer.text
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "time" and choice["message"]["content"] is None
    assert json.loads(call["function"]["arguments"])["zone"] in ("utc", "cet")
    found = events(real.chat("hello", stream=True, **fields))
    (streamed,) = streamed_calls(found[:-1])
    assert streamed["function"] == call["function"]
    assert found[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_without_content_suits_a_template_that_adds_it(words: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
    text = Text(load_tokenizer(with_template(words, tmp_path / "model", template)))
    call = {"type": "function", "id": "1", "function": {"name": "time", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    room = Room(100, "messages")
    assert text.chat([said], room) == text.chat([said | {"content": ""}], room)
    with pytest.raises(InputError, match="content"):
        text.chat([{"role": "assistant", "content": None}], room)


def test_tools_may_stay_unused(real: Served) -> None:
    (choice,) = real.chat("hello", tools=[TOOL], max_tokens=5).json()["choices"]
    assert choice["finish_reason"] in ("length", "stop")
    assert real.chat("hello", tools=[TOOL], tool_choice="none", max_tokens=2).status_code == 200


def test_a_template_without_tools_is_taught_them(server: Served) -> None:
    plain, taught = (server.chat(max_tokens=1, **more) for more in ({}, {"tools": [OTHER]}))
    counts = [each.json()["usage"]["prompt_tokens"] for each in (plain, taught)]
    assert counts[1] > counts[0] + 100
    assert server.chat(tools=[TOOL], tool_choice="none", max_tokens=1).status_code == 200
    assert server.chat(tools=[], max_tokens=1).status_code == 200


def test_a_bad_schema_of_a_tool_shows_no_grammar_of_the_server(real: Served) -> None:
    function = {
        "name": "time",
        "parameters": {"type": "object", "properties": {"a": {"type": "x"}}},
    }
    error = real.chat(
        tools=[{"type": "function", "function": function}], tool_choice="required"
    ).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_schema", "tools")
    assert error["message"] == "the grammar is bad: Invalid type: x"


def test_a_call_that_must_be_made_leaves_no_text_to_have_a_form(real: Served) -> None:
    fields: Any = {"tools": [TOOL], "tool_choice": "required", "seed": 2}
    plain, formed = (
        real.chat(**fields, **more).json()["choices"][0]["message"]
        for more in ({}, {"response_format": {"type": "json_object"}})
    )
    assert formed["content"] is None
    calls = [[call["function"] for call in each["tool_calls"]] for each in (plain, formed)]
    assert calls[0] == calls[1]
