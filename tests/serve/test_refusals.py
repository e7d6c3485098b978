"""What is wrong with a field is said once, with its name: fields.py, talk.py, errors.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving import Served, real
from suffice.serve.errors import Problem
from suffice.serve.http.talk import talk_of
from suffice.serve.interfaces.names import settle
from suffice.serve.posted import POSTED

TALK = [{"role": "user", "content": "a"}]


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*TALK, {"role": "assistant", "content": None, "tool_calls": [call]}]


def refusal(server: Served, fields: dict[str, Any], path: str = "/v1/chat/completions") -> Any:
    body = {"messages": TALK, "max_tokens": 3, **fields} if "chat" in path else fields
    answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("fields", "code", "param", "message"),
    [
        (
            {"suffice": {"atention": "x"}},
            "unknown_field",
            "suffice",
            "unknown field 'suffice.atention'. Did you mean 'suffice.attention'?",
        ),
        (
            {"structured_outputs": {"jsn": 1}},
            "unknown_field",
            "structured_outputs",
            "unknown field 'structured_outputs.jsn'. Did you mean 'structured_outputs.json'?",
        ),
        ({"stop": 5}, "invalid_value", "stop", "stop: must be a text or a list of texts, not 5"),
        (
            {"stop": [1]},
            "invalid_value",
            "stop",
            "stop: must be a text or a list of texts, not [1]",
        ),
        (
            {"stop": ""},
            "invalid_value",
            "stop",
            "stop=['']: every entry must be a string that is not empty",
        ),
        (
            {"logit_bias": {"1": 1e9}},
            "invalid_value",
            "logit_bias",
            "logit_bias of token 1: 1000000000.0 must be a number in [-100, 100]",
        ),
        (
            {"temperature": 1e9},
            "invalid_value",
            "temperature",
            "temperature: Input should be less than or equal to 100, not 1000000000.0",
        ),
        (
            {"truncate_prompt_tokens": 0},
            "invalid_value",
            "truncate_prompt_tokens",
            "truncate_prompt_tokens=0: must be at least 1, or -1 for as many as fit",
        ),
        (
            {"min_tokens": 600, "max_tokens": 700},
            "invalid_value",
            "min_tokens",
            "min_tokens=600: must be less than 512, the context",
        ),
        (
            {"messages": [{"role": "usr", "content": "a"}]},
            "invalid_value",
            "messages",
            "messages[0]: unknown role 'usr'. Did you mean 'user'? Known: assistant, developer, "
            "function, system, tool, user",
        ),
        (
            {"messages": called("{oops")},
            "invalid_value",
            "messages",
            "messages[1].tool_calls[0]: arguments must be a JSON object, not '{oops'",
        ),
        (
            {"messages": called("[1]")},
            "invalid_value",
            "messages",
            "messages[1].tool_calls[0]: arguments must be a JSON object, not '[1]'",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "invalid_schema",
            "response_format",
            "the grammar is bad: Invalid type: x",
        ),
        (
            {"structured_outputs": {"regex": "("}},
            "invalid_schema",
            "structured_outputs",
            "the grammar is bad: unclosed group",
        ),
        ({"suffice": 1}, "invalid_value", "suffice", "suffice: must be an object, not 1"),
        (
            {"structured_outputs": {"json": 1}},
            "invalid_value",
            "structured_outputs",
            "structured_outputs.json: must be a text, an object or true or false, not 1",
        ),
        (
            {"messages": []},
            "invalid_value",
            "messages",
            "messages: must have at least 1 item, not []",
        ),
        (
            {"seed": 2**64},
            "invalid_value",
            "seed",
            "seed: a whole number does not fit into 64 bits",
        ),
        (
            {"n_probs": 3},
            "unknown_field",
            "n_probs",
            "unknown field 'n_probs'. Use 'logprobs'.",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "invalid_schema",
            "response_format",
            "response_format.json_schema.schema: must be an object, not None",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {}, "strict": "y"},
                }
            },
            "invalid_schema",
            "response_format",
            "response_format.json_schema.strict: must be true or false, not 'y'",
        ),
    ],
)
def test_a_field_of_a_chat_is_named_once(
    server: Served, fields: dict[str, Any], code: str, param: str, message: str
) -> None:
    error = refusal(server, fields)
    assert (error["code"], error["param"], error["message"]) == (code, param, message)


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/completions", {}, "prompt", "prompt: is required"),
        ("/v1/messages", {"messages": TALK}, "max_tokens", "max_tokens: is required"),
        ("/v1/responses", {"input": [5]}, "input", "must be a text or a list of objects, not [5]"),
        (
            "/v1/responses",
            {"input": [{"role": "usr", "content": "a"}]},
            "input",
            "unknown role 'usr'",
        ),
        (
            "/v1/completions",
            {"prompt": 5},
            "prompt",
            "prompt: must be a text, a list of whole numbers, a list of texts or a list of lists "
            "of whole numbers, not 5",
        ),
        ("/v1/responses", {"input": []}, "input", "input: must have at least 1 item, not []"),
        (
            "/v1/responses",
            {"input": [{"role": "usr", "content": "a"}], "instructions": "b"},
            "input",
            "input[0]: unknown role 'usr'",
        ),
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "x"}}},
            "text",
            "text.format: must",
        ),
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "json_schema", "name": "a"}}},
            "text",
            "text.format: must be",
        ),
        (
            "/v1/responses",
            {
                "input": "a",
                "text": {"format": {"type": "json_schema", "schema": {}, "strict": "y"}},
            },
            "text",
            "text.format: must be",
        ),
        ("/v1/responses", {"input": "a", "tool_choice": "required"}, "tool_choice", "needs tools"),
        (
            "/v1/messages",
            {"messages": TALK, "max_tokens": 1, "stop_sequences": [""]},
            "stop_sequences",
            "stop_sequences=['']: every entry must be",
        ),
    ],
)
def test_a_field_of_another_route_is_named_once(
    server: Served, path: str, body: dict[str, Any], param: str, message: str
) -> None:
    error = refusal(server, body, path)
    assert error["param"] == param and message in error["message"]
    assert error["message"].count("not ") <= 1


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 5.0, "min_p": 0.1},
        {"messages": [{"role": "user", "content": "a\0b"}]},
        {"messages": [{"role": "developer", "content": "a"}, *TALK]},
        {"messages": [*called('{"a": 1}'), {"role": "tool", "content": "1", "tool_call_id": "1"}]},
        {"messages": called("")},
        {"messages": called({"a": 1})},
        {"stop": []},
    ],
)
def test_what_clients_send_is_taken(server: Served, fields: dict[str, Any]) -> None:
    answer = server.post("/v1/chat/completions", {"messages": TALK, "max_tokens": 2, **fields})
    assert answer.status_code == 200, answer.text


def test_counting_needs_no_limit(server: Served) -> None:
    answer = server.post("/v1/messages/count_tokens", {"messages": TALK})
    assert answer.status_code == 200 and answer.json()["input_tokens"] > 1


def test_the_most_that_fits(server: Served) -> None:
    fields = {"prompt": "ab!xyz?" * 1000, "max_tokens": 1, "truncate_prompt_tokens": -1}
    answer = server.post("/v1/completions", fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == 511
    few = server.post("/v1/completions", {**fields, "min_tokens": 10, "max_tokens": 10})
    assert few.json()["usage"]["prompt_tokens"] == 502


@pytest.mark.parametrize(
    ("body", "byte"),
    [
        (b'{"prompt": "aaaa", "b": "cc\xff"}', 27),
        (b'{"prompt": "aaaa", "b\xff": "cc"}', 21),
        (b'\xff{"prompt": "aaaa"}', 0),
    ],
)
def test_bytes_that_are_no_text_are_found(server: Served, body: bytes, byte: int) -> None:
    headers = {"content-type": "application/json"}
    answer = server.client.post("/v1/completions", content=body, headers=headers)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and f"byte {byte})" in message


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"null", "must be a JSON object, not null"),
        (b"[1]", "must be a JSON object, not a list"),
        (b'{"prompt": [1e999]}', "Number out of range"),
    ],
)
def test_a_body_of_another_kind_is_named_in_words(server: Served, body: bytes, part: str) -> None:
    headers = {"content-type": "application/json"}
    answer = server.client.post("/v1/completions", content=body, headers=headers)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and part in message and "$" not in message


def schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": fields}}}


def test_what_the_engine_refuses_is_of_its_field(words: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        ("response_format", schema(**{"$ref": "#"}), "invalid_schema", "no text follows it"),
        ("logit_bias", {"logit_bias": {"99999": 1}}, "invalid_value", "is not a token id"),
        ("stop_token_ids", {"stop_token_ids": [99999]}, "invalid_value", "is not a token id"),
        ("n", {"n": 100}, "invalid_value", "must not be more than"),
    ]
    with real(words) as server:
        for param, fields, code, part in cases:
            error = refusal(server, fields)
            assert (error["code"], error["param"]) == (code, param) and part in error["message"]
        error = refusal(server, {"prompt": [99999]}, "/v1/completions")
        assert error["message"].startswith("prompt") and "_ids" not in error["message"]
        assert error["param"] == "prompt" and json.dumps(99999) in error["message"]


def test_a_developer_is_the_system_where_the_template_has_none() -> None:
    said = [{"role": "developer", "content": "a"}]
    named = "{% if message['role'] == 'developer' %}"
    assert talk_of(said, "{{ message['role'] }}") == [{"role": "system", "content": "a"}]
    assert talk_of(said, named) == said
    assert said == [{"role": "developer", "content": "a"}]


def test_no_field_of_another_kind_of_request_is_dropped() -> None:
    """Whatever is a field somewhere is one, is settled, or is refused, at every path."""
    names = {"embed_dtype", "endianness", "max_tokens_per_doc", "n_cmpl", "repetition_detection"}
    names |= {"messages", "instructions", "temperature", "logit_bias", "tools", "use_activation"}
    for path, _, kind, _ in POSTED:
        for name in names - set(kind.model_fields):
            with pytest.raises(Problem) as refused:
                settle({name: [1]}, kind.model_fields, allow_unknown=True)
            assert refused.value.param == name, path
