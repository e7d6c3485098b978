"""Coding agents work by address alone: their requests over twenty turns, as they publish them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import speaking
import tiny
from serving import Served, events, served
from serving import real as real_engine
from suffice.engine.work import Delta
from suffice.serve.interfaces.message_request import Messages, chat_of, read
from suffice.serve.interfaces.response_request import Responses
from suffice.serve.interfaces.response_request import chat_of as chat_of_responses
from suffice.serve.interfaces.response_tools import Asked, earlier
from suffice.serve.interfaces.sample import Sample

TURNS = 20
SYSTEM = "You are an agent that edits code. " * 20
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PATCH = '*** Begin Patch\n*** Update File: a.py\n+"é"\n*** End Patch'


def claude_code(turn: int, talk: list[Any]) -> dict[str, Any]:
    """Return the request of a turn: its first block of the system differs from turn to turn."""
    bill = f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={turn:05x};"
    return {
        "model": "tiny",
        "max_tokens": 4,
        "stream": True,
        "system": [
            {"type": "text", "text": bill},
            {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [
            {"name": "Bash", "description": "Run a command.", "input_schema": SCHEMA},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": f"user_{turn}"},
        "messages": talk,
    }


def codex(turn: int, talk: list[Any]) -> dict[str, Any]:
    """Return the request of a turn, with the twelve fields that Codex sends."""
    function = {"type": "function", "name": "shell", "strict": False, "parameters": SCHEMA}
    return {
        "model": "tiny",
        "instructions": SYSTEM,
        "input": talk,
        "tools": [
            function,
            {
                "type": "custom",
                "name": "apply_patch",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"},
            },
            {"type": "namespace", "name": "mcp__node", "tools": [{**function, "name": "js"}]},
            {"type": "web_search", "external_web_access": True},
            {"type": "tool_search"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "019a",
        "client_metadata": {"x-codex-turn-metadata": str(turn)},
    }


@pytest.fixture(scope="module")
def agent_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("agents")
    tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=16384)
    with real_engine(folder) as server:
        yield server


def test_claude_code_over_twenty_turns(agent_server: Served) -> None:
    talk: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Fix the test."}]}]
    cached = known = before = 0
    for turn in range(TURNS):
        answer = agent_server.post("/v1/messages?beta=true", claude_code(turn, talk))
        assert answer.status_code == 200, answer.text
        found = events(answer)
        assert found[0]["message"]["metadata"] == {"left_out": "tool web_search_20250305"}
        usage = found[-2]["usage"]
        if turn:
            cached += usage["cache_read_input_tokens"]
            known += before
        before = usage["input_tokens"] + usage["cache_read_input_tokens"]
        used = {
            "type": "tool_use",
            "id": f"toolu_{turn}",
            "name": "Bash",
            "input": {"command": "ls"},
        }
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": f"a.py {turn}"}
        thought = {"type": "thinking", "thinking": "", "signature": ""}
        talk += [
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, used]},
            {"role": "user", "content": [result]},
        ]
    assert cached >= 0.95 * known, (cached, known)


@pytest.mark.parametrize("where", [None, "system", "message", "request"])
def test_marks_of_caches_keep_what_others_share_a_part_of(
    where: str | None, tmp_path: Path
) -> None:
    """A second talk begins like the first, which goes on then: from its end, if that was marked."""
    tiny.make(tmp_path, "llama", tokenizer=True, max_position_embeddings=16384)
    mark = {"cache_control": {"type": "ephemeral"}}

    def asked(talk: list[str]) -> dict[str, Any]:
        texts: list[Any] = [{"type": "text", "text": text} for text in talk]
        texts[-1] |= mark if where == "message" else {}
        roles = ("user", "assistant")
        said = [{"role": roles[at % 2], "content": [text]} for at, text in enumerate(texts)]
        system = [{"type": "text", "text": SYSTEM, **(mark if where == "system" else {})}]
        body = {"system": system, "messages": said, "max_tokens": 2, "temperature": 0}
        return body | (mark if where == "request" else {})

    first = ["Fix it. " * 30]
    with real_engine(tmp_path) as server:
        talks = (first, ["Test it."], [*first, "Done.", "Why?"])
        found = [server.post("/v1/messages", asked(talk)).json()["usage"] for talk in talks]
    begin, end = found[1]["cache_read_input_tokens"], found[0]["input_tokens"]
    assert begin > 64 and 2 * begin > end, "the second takes what it has in common"
    again = found[2]["cache_read_input_tokens"]
    if where in ("message", "request"):
        assert again >= end - 64
    else:
        assert begin <= again < end - 64


def test_codex_over_twenty_turns(agent_server: Served) -> None:
    talk: list[Any] = [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be kind."}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
    ]
    cached = known = before = 0
    for turn in range(TURNS):
        answer = agent_server.post("/v1/responses", codex(turn, talk))
        assert answer.status_code == 200, answer.text
        last = events(answer)[-1]["response"]
        assert last["metadata"]["left_out"].startswith("tool web_search, tool tool_search")
        usage = last["usage"]
        if turn:
            cached += usage["input_tokens_details"]["cached_tokens"]
            known += before
        before = usage["input_tokens"]
        call = f"call_{turn}"
        kinds = ({"type": "function_call", "name": "js", "namespace": "mcp__node"}, "function_call")
        if turn % 2:
            kinds = ({"type": "custom_tool_call", "name": "apply_patch"}, "custom_tool_call")
        own, kind = kinds
        field = "input" if turn % 2 else "arguments"
        talk += [
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
            {**own, "call_id": call, field: PATCH if turn % 2 else '{"command": "1"}'},
            {"type": f"{kind}_output", "call_id": call, "output": f"done {turn}"},
        ]
    talk.append({"type": "compaction", "encrypted_content": "gAAA"})
    answer = agent_server.post("/v1/responses", {**codex(0, talk), "stream": False})
    assert answer.json()["metadata"]["left_out"].endswith("item compaction")
    assert cached >= 0.95 * known, (cached, known)


def test_a_chat_as_open_code_sends_it(agent_server: Served) -> None:
    tool = {"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}
    asked = {"stream_options": {"include_usage": True}, "reasoning_effort": "medium"}
    answer = agent_server.chat(tools=[tool], tool_choice="auto", stream=True, max_tokens=2, **asked)
    assert answer.status_code == 200 and events(answer)[-1] == "[DONE]"


def test_calls_come_back_as_the_tools_they_are(
    tmp_path_factory: pytest.TempPathFactory, engine_path: None
) -> None:
    folder = speaking.make(tmp_path_factory.mktemp("calls"), "qwen3", tokens=False)
    calls = (("apply_patch", {"input": PATCH}), ("mcp__node__js", {"command": "1"}))
    said = "\n".join(
        "<tool_call>\n" + json.dumps({"name": name, "arguments": given}) + "\n</tool_call>"
        for name, given in calls
    )
    talk = [{"role": "user", "content": "Fix it."}]
    with served(folder, options={"says": said, "context": 4096}) as server:
        body = {**codex(0, talk), "model": None, "parallel_tool_calls": True}
        body["max_output_tokens"] = len(said) // 10 + 1
        found = events(server.post("/v1/responses", body))
        whole = server.post("/v1/responses", {**body, "stream": False}).json()
    for items in (found[-1]["response"]["output"], whole["output"]):
        patch, call = items
        assert (patch["type"], patch["name"], patch["input"]) == (
            "custom_tool_call",
            "apply_patch",
            PATCH,
        )
        assert (call["type"], call["name"], call["namespace"]) == (
            "function_call",
            "js",
            "mcp__node",
        )
        assert json.loads(call["arguments"]) == {"command": "1"}
    (written,) = [e["delta"] for e in found if e["type"] == "response.custom_tool_call_input.delta"]
    assert written == PATCH


def test_the_header_of_bills_is_no_part_of_the_prompt() -> None:
    talk = [{"role": "user", "content": "hi"}]
    bodies = [json.dumps(claude_code(turn, talk)).encode() for turn in (1, 2)]
    prompts = [chat_of(read(raw, Messages, allow_unknown=False)).messages for raw in bodies]
    assert prompts[0] == prompts[1]
    assert prompts[0][0] == {"role": "system", "content": SYSTEM}
    quoted = Messages(messages=talk, system="x-anthropic-billing-header: is a header")
    assert chat_of(quoted).messages[0]["content"] == "x-anthropic-billing-header: is a header"


def test_an_answers_parts_are_one_message() -> None:
    items = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
        {"type": "message", "role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "1", "name": "ls", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "ls", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "x", "text": "a"}]},
        {"type": "web_search_call", "id": "3"},
    ]
    chat, asked = chat_of_responses(Responses(input=items))
    said, result = chat.messages
    assert (said["reasoning_content"], said["content"]) == ("Hm.\nSo.", "I look.")
    assert [call["id"] for call in said["tool_calls"]] == ["1", "2"]
    assert result["content"] == "a" and asked.left_out == ["item web_search_call"]
    assert earlier({"type": "compaction"}) is None


def test_a_custom_call_that_is_cut_has_what_there_is() -> None:
    asked = Asked.of([{"type": "custom", "name": "patch"}])
    assert asked.item("1", "patch", '{"input": "a', "incomplete")["input"] == '{"input": "a'
    assert asked.item("1", "other", "{}", "completed")["type"] == "function_call"
    assert asked.item("1", "patch", '{"input": 3}', "completed")["input"] == "3"


def test_tokens_of_thinking_are_counted_by_their_marks() -> None:
    sample = Sample(None, marks=(7, 8))
    sample._count(Delta("a", 0, "", (1, 7, 2, 3, 8, 4)), [], False)
    assert sample.thinking_tokens == 4
    sample._count(Delta("a", 0, "", (2, 8, 4)), [], True)
    assert sample.thinking_tokens == 6
