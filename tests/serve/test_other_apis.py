"""The Responses API and Anthropic's: responses.py and messages.py, with their own clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from serving import Served, served
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.serve.interfaces import messages, response_request
from suffice.serve.settings import ENGINE

if TYPE_CHECKING:  # they take seconds to load
    import anthropic
    import openai

SCHEMA = {
    "type": "object",
    "properties": {"zone": {"enum": ["utc", "cet"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
MESSAGES: Any = [{"role": "user", "content": "hello"}]
ANTHROPIC_TOOL: Any = {"name": "time", "description": "Time.", "input_schema": SCHEMA}
OPENAI_TOOL: Any = {"type": "function", "name": "time", "parameters": SCHEMA, "strict": True}
BAD_CALL: Any = {"type": "tool_use", "id": "a", "name": "time", "input": "{oops"}
BEFORE: Any = [
    {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "a", "name": "time", "input": {"zone": "utc"}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "9:00"}]},
]


@pytest.fixture(scope="module")
def real(words: Path) -> Iterator[Served]:
    options = engine_options(ModelFlags(options=EngineOptions(model=str(words), threads=1)), 4)
    chosen = {"engine": ENGINE, "options": options, "tool_parser": "hermes"}
    with served(words, model="tiny", **chosen) as found:
        yield found


@pytest.fixture(scope="module")
def claude(server: Served) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def gpt(server: Served) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_messages(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "scripted", "max_tokens": 5, "messages": MESSAGES}
    whole = claude.messages.create(system="Be kind.", **asked)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 5
    assert whole.content[0].type == "text" and whole.content[0].text.count("é") == 5
    with claude.messages.stream(system=[{"type": "text", "text": "Be kind."}], **asked) as stream:
        assert "".join(stream.text_stream).count("é") == 5
        assert stream.get_final_message().usage.output_tokens == 5
    counted = claude.messages.count_tokens(model="scripted", messages=MESSAGES, system="Be kind.")
    assert counted.input_tokens == whole.usage.input_tokens + (
        whole.usage.cache_read_input_tokens or 0
    )


def test_tools_of_messages(real: Served) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=real.url, api_key="none", max_retries=0) as client:
        asked: Any = {
            "model": "tiny",
            "max_tokens": 300,
            "messages": BEFORE,
            "tools": [ANTHROPIC_TOOL],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        }
        whole = client.messages.create(**asked)
        (block,) = whole.content
        assert whole.stop_reason == "tool_use" and block.type == "tool_use"
        assert block.name == "time" and block.input["zone"] in ("utc", "cet")
        with client.messages.stream(**asked) as stream:
            (streamed,) = stream.get_final_message().content
        assert streamed.type == "tool_use" and set(streamed.input) == {"zone"}


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"messages": []}, "at least 1 item"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image' is not"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "must be user or assistant"),
        ({"tools": [{"name": "bash"}]}, "input_schema"),
        ({"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "x"}}, "auto, any, tool or none"),
        ({"tool_choice": {"type": "any"}}, "tool_choice 'any' needs tools"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice 'tool' needs tools"),
        ({"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": []}}, "none, not []"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "must be {'type': 'adaptive'}"),
        ({"thinking": {"type": "deep"}}, "must be {'type': 'adaptive'}, {'type': 'disabled'} or"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: must be"),
        ({"output_config": {"effrt": "low"}}, "'output_config.effrt'. Did you mean"),
        ({"max_tokns": 1}, "Did you mean 'max_tokens'?"),
        (
            {
                "system": "Be kind.",
                "messages": [*MESSAGES, {"role": "assistant", "content": [BAD_CALL]}],
            },
            "messages[1].tool_calls[0]: arguments must be",
        ),
    ],
)
def test_bad_messages(server: Served, fields: dict[str, Any], part: str) -> None:
    body = {"model": "scripted", "max_tokens": 1, "messages": MESSAGES, **fields}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 400 and answer.json()["type"] == "error"
    assert part in answer.json()["error"]["message"]


def test_an_answer_goes_on_where_the_last_message_stops(real: Served) -> None:
    talk = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "The answer"}]}]
    asked = {"max_tokens": 6, "temperature": 0, "thinking": {"type": "disabled"}}
    whole = real.post("/v1/messages", {"messages": talk, **asked}).json()
    chat = {"messages": talk, "max_tokens": 6, "temperature": 0}
    other = real.post("/v1/chat/completions", {**chat, "continue_final_message": True}).json()
    assert whole["content"][0]["text"] == other["choices"][0]["message"]["content"]
    counted = real.post("/v1/messages/count_tokens", {"messages": talk}).json()
    assert counted["input_tokens"] == other["usage"]["prompt_tokens"]
    turn = real.post("/v1/chat/completions", chat).json()
    assert turn["usage"]["prompt_tokens"] > other["usage"]["prompt_tokens"]


def test_the_form_of_an_answer_to_messages(real: Served) -> None:
    form = {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}
    body = {"messages": MESSAGES, "max_tokens": 200, "output_config": form}
    (block,) = real.post("/v1/messages", body).json()["content"]
    assert json.loads(block["text"])["zone"] in ("utc", "cet")
    bad = {"format": {"type": "json_schema", "schema": {"type": "x"}}}
    error = real.post("/v1/messages", {**body, "output_config": bad}).json()["error"]
    assert error["param"] == "output_config" and "Invalid type: x" in error["message"]


@pytest.mark.parametrize(
    ("switch", "several"),
    [
        ({}, True),
        ({"disable_parallel_tool_use": False}, True),
        ({"disable_parallel_tool_use": True}, False),
    ],
)
def test_whether_messages_allow_several_calls(switch: dict[str, bool], several: bool) -> None:
    choice = {"type": "any", **switch}
    asked = messages.Messages(messages=MESSAGES, tools=[ANTHROPIC_TOOL], tool_choice=choice)
    assert messages.chat_of(asked).parallel_tool_calls is several


def test_anthropics_client_knows_the_errors(claude: anthropic.Anthropic) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", max_tokens=1, messages=MESSAGES)


def test_responses(gpt: openai.OpenAI) -> None:
    whole = gpt.responses.create(
        model="scripted", input="hello", instructions="Be kind.", max_output_tokens=5, temperature=0
    )
    assert whole.output_text.count("é") == 5 and whole.status == "incomplete"
    assert whole.incomplete_details and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None and whole.usage.output_tokens == 5
    kinds, text = [], ""
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    for each in gpt.responses.create(model="scripted", input=asked, stream=True):
        kinds.append(each.type)
        if each.type == "response.output_text.delta":
            text += each.delta
        if each.type in ("response.completed", "response.incomplete"):
            assert each.response.output_text == text
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.incomplete", "the scripted engine ends by length"


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", "END", ("stop_sequence", "END")),
        ("stop", 7, ("end_turn", None)),  # a token
        ("stop", None, ("end_turn", None)),
        ("length", None, ("max_tokens", None)),
        ("tool_calls", None, ("tool_use", None)),
    ],
)
def test_why_an_answer_to_messages_has_ended(reason: str, stop: Any, expected: Any) -> None:
    found = messages._stopped(reason, stop)
    assert (found["stop_reason"], found["stop_sequence"]) == expected


def test_what_a_developer_says_is_of_the_system() -> None:
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "hello"}]
    said = response_request.chat_of(response_request.Responses(input=items))[0].messages
    assert [each["role"] for each in said] == ["system", "user"]


def test_tools_and_forms_of_responses(real: Served) -> None:
    import openai

    before: Any = [
        {"role": "user", "content": "What time is it?"},
        {"type": "function_call", "call_id": "a", "name": "time", "arguments": '{"zone": "utc"}'},
        {"type": "function_call_output", "call_id": "a", "output": "9:00"},
    ]
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {
            "model": "tiny",
            "input": before,
            "tools": [OPENAI_TOOL],
            "tool_choice": {"type": "function", "name": "time"},
            "max_output_tokens": 300,
        }
        (item,) = client.responses.create(**asked).output
        assert item.type == "function_call" and item.name == "time" and "zone" in item.arguments
        kinds = [each.type for each in client.responses.create(stream=True, **asked)]
        assert "response.function_call_arguments.done" in kinds
        assert kinds[-1] == "response.completed"
        form: Any = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
        found = client.responses.create(model="tiny", input="hello", text=form)
        assert (
            found.output_text.replace(" ", "").startswith('{"zone":') or "\n" in found.output_text
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_bad_responses(server: Served, fields: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/responses", {"model": "scripted", "input": "a", **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert answer.json()["error"]["code"] == "unsupported"


def test_a_response_has_a_seed_and_stops(server: Served) -> None:
    body: Any = {"model": "scripted", "input": "a", "max_output_tokens": 9, "store": False}
    texts = [
        server.post("/v1/responses", {**body, **more}).json()["output"][0]["content"][0]["text"]
        for more in ({"seed": 1}, {"seed": 1}, {"seed": 2})
    ]
    assert texts[0] == texts[1] != texts[2]
    for stream in ({}, {"stream": True, "stream_options": {"include_obfuscation": True}}):
        answer = server.post("/v1/responses", {**body, "seed": 1, "stop": ["x", "y"], **stream})
        assert answer.status_code == 200
    for bad, param in (
        ({"stop": 1}, "stop"),
        ({"stream_options": {"include_usage": True}, "stream": True}, "stream_options"),
        ({"stream_options": {}}, "stream_options"),
    ):
        error = server.post("/v1/responses", {**body, **bad}).json()["error"]
        assert error["param"] == param, error


def test_what_a_response_may_include(server: Served) -> None:
    body = {"model": "scripted", "input": "a", "max_output_tokens": 1, "truncation": "disabled"}
    taken = server.post("/v1/responses", {**body, "include": ["reasoning.encrypted_content"]})
    assert taken.status_code == 200, taken.text
    for bad in (["x"], "x", [[]]):
        error = server.post("/v1/responses", {**body, "include": bad}).json()["error"]
        assert error["param"] == "include" and "must be a list of" in error["message"]
    error = server.post("/v1/responses", {**body, "top_logprobs": 1}).json()["error"]
    assert "keeps no" not in error["message"] and "/v1/chat/completions" in error["message"]
