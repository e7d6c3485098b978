"""Tool calls: tools.py, tool_prompt.py, and in chats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import Served, events, served
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.errors import InputError
from suffice.serve.dialects.tools import READERS, Tools, parser_of
from suffice.serve.errors import Problem
from suffice.serve.http.text import Room, Text
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
# (form, text, content, names of the calls)
TEXTS = [
    ("hermes", "hello <b> there", "hello <b> there", []),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", ["time"]),
    ("hermes", f"Let me see.\n<tool_call>{CALL}</tool_call>", "Let me see.", ["time"]),
    ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", ["time"] * 2),
    ("hermes", f"<tool_call>{CALL}", "", ["time"]),
    ("hermes", "<tool_call>{oops</tool_call> x", "<tool_call>{oops</tool_call> x", []),
    ("hermes", "<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ("hermes", "1 <tool", "1 <tool", []),
    ("hermes", "<tool_call>" + "[" * 5000, "<tool_call>" + "[" * 5000, []),
    ("llama3", LLAMA, "", ["time"]),
    ("llama3", f"<|python_tag|>{LLAMA}; {LLAMA}", "", ["time", "time"]),
    ("llama3", "{not a call}", "{not a call}", []),
    ("llama3", f"{LLAMA} and more", f"{LLAMA} and more", []),
    ("llama3", "plain {text}", "plain {text}", []),
    ("llama3", "", "", []),
]


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
        ("hermes", '<tool_call>{"name": "time"', '<tool_call>{"name": "time"', []),
        ("hermes", '<tool_call>\n{"name": "time", "arguments":', "", [("time", "")]),
        ("hermes", 'Now.<tool_call>{"name": "t\\"", "arguments": {"zo', "Now.", [('t"', '{"zo')]),
        ("hermes", f"<tool_call>{CALL[:-1]}", "", [("time", '{"zone": "é}{"}')]),
        (
            "hermes",
            f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL[:-4]}",
            "",
            [("time", '{"zone": "é}{"}'), ("time", '{"zone": "é}')],
        ),
        ("llama3", LLAMA[:-5], "", [("time", '{"zone": "é')]),
        (
            "llama3",
            f"{LLAMA}; {LLAMA[:-5]}",
            "",
            [("time", '{"zone": "é}{"}'), ("time", '{"zone": "é')],
        ),
        ("llama3", '{"name', '{"name', []),
    ],
)
def test_a_call_that_is_cut_keeps_the_part_of_its_arguments(
    form: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    reader = READERS[form]()
    first, none = reader.push(text[:5], last=False)
    shown, found = reader.push(text[5:], last=True, cut=True)
    assert first + shown == content
    streamed = [each["function"] for each in [*none, *found]]
    assert [(each["name"], each["arguments"]) for each in streamed] == calls
    other = READERS[form]()
    other.push(text, last=True)
    assert len(other.calls) <= len(calls), "what ends by itself is no cut call"


@pytest.mark.parametrize(("form", "text", "content", "names"), TEXTS)
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_calls_are_found_however_the_text_is_cut(
    form: str, text: str, content: str, names: list[str], cuts: list[int]
) -> None:
    reader = READERS[form]()
    shown, streamed = "", []
    edges = sorted({0, *(cut for cut in cuts if cut < len(text))})
    for start, end in [*pairwise(edges), (edges[-1], len(text))]:
        piece, calls = reader.push(text[start:end], last=end == len(text))
        shown += piece
        streamed += calls
    assert shown.strip() == content.strip()
    assert [call["function"]["name"] for call in reader.calls] == names
    assert [call["index"] for call in streamed] == list(range(len(names)))
    for call in reader.calls:
        assert json.loads(call["function"]["arguments"]) == {"zone": "é}{"}


@pytest.mark.parametrize(
    ("tools", "choice", "part"),
    [
        ([{"type": "x"}], None, "tools[0]: must be"),
        ([{"type": "function", "function": {}}], None, "has no name"),
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


def test_the_form_follows_from_the_template() -> None:
    assert parser_of("{{ tools }} <tool_call>", "auto") == "hermes"
    assert parser_of("{{ tools }} parameters", None) == "llama3"
    assert parser_of("{{ tools }}", "auto") is None
    assert parser_of(None, "auto") is None
    assert parser_of(None, "llama3") == "llama3"
    with pytest.raises(InputError, match="unknown tool-call parser 'herms'"):
        parser_of(None, "herms")


@pytest.mark.parametrize("form", ["hermes", "llama3"])
@pytest.mark.parametrize("names", [["time"], ["time", "timer"], ["time", "stop"]])
def test_a_call_that_must_be_made_is_never_content(form: str, names: list[str]) -> None:
    whole = {
        "hermes": f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>",
        "llama3": f"{LLAMA};{LLAMA}",
    }[form]
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    counts = []
    for end in range(1, len(whole) + 1):
        reader = Tools(tools, "required", True).reader(form)()
        first, early = reader.push(whole[: end // 2], last=False)
        shown, late = reader.push(whole[end // 2 : end], last=True, cut=end < len(whole))
        assert first + shown == ""
        calls = [each["function"] for each in [*early, *late]]
        assert [each["function"] for each in reader.calls] == calls
        assert all(each["name"] == "time" for each in calls)
        assert all('{"zone": "é}{"}'.startswith(each["arguments"]) for each in calls)
        counts.append(len(calls))
    assert counts == sorted(counts), "what has come stays"
    named = whole.index('"ti' if "stop" in names else 'e",' if "timer" in names else whole[0])
    assert counts.index(1) <= named + 3 and counts[-1] == 2
    assert counts[0] == (1 if names == ["time"] else 0)


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_no_other_tool_than_the_named_one_is_called(form: str) -> None:
    named = {"type": "function", "function": {"name": "time"}}
    tools = Tools([OTHER, TOOL], named, True)
    assert tools.grammar(form) == Tools([TOOL], named, True).grammar(form)
    _, (call,) = tools.reader(form)().push('{"', last=True)
    assert call["function"]["name"] == "time", "a call that is cut can only be of this one"


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
    parts = [each["choices"][0]["delta" if stream else "message"] for each in found]
    ((call,),) = [each["tool_calls"] for each in parts if "tool_calls" in each]
    assert call["function"]["name"] == "time"
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(call["function"]["arguments"])


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
    text = Text(load_tokenizer(words))
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
        found = text.chat(messages, room, facts={"tools": tools}, form=form)
        return text.tokenizer.decode(found)

    found = shown(talk, [TOOL, OTHER])
    assert found.startswith("<|system|>Be kind.\n\nYou can call functions.")
    assert f"{json.dumps(TOOL)}\n{json.dumps(OTHER)}" in found
    said = f"<|assistant|>I look.\n{call}<|end|><|user|>{result}\n{result}<|end|><|assistant|>"
    assert found.endswith(f"<|user|>When?<|end|>{said}")
    assert shown(talk[1:2], [TOOL]).startswith("<|system|>You can call functions.")
    assert shown(talk, None).startswith("<|system|>Be kind.<|end|>")
    plain = text.chat(talk[:2], room)
    assert text.chat(talk[:2], room, form=form) == plain


def test_the_template_for_tools_is_used_with_tools(words: Path, tmp_path: Path) -> None:
    several = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "<tool_call>{{ tools[0]['type'] }}"},
    ]
    tokenizer = load_tokenizer(with_template(words, tmp_path / "a", several))
    text, room = Text(tokenizer), Room(100, "messages")
    talk = [{"role": "user", "content": "a"}]
    for form in (None, "hermes", None):
        assert tokenizer.decode(text.chat(talk, room, facts={"tools": [TOOL]}, form=form)) == (
            "<tool_call>function"
        )
        assert tokenizer.decode(text.chat(talk, room, form=form)) == "plain"
    assert parser_of(tokenizer.tool_template, "auto") == "hermes"


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
    deltas = [each["choices"][0] for each in found[:-1]]
    (streamed,) = [d["delta"]["tool_calls"] for d in deltas if "tool_calls" in d["delta"]]
    assert streamed[0]["function"] == call["function"]
    assert deltas[-1]["finish_reason"] == "tool_calls"


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


def test_a_template_without_tools_refuses_them(server: Served) -> None:
    answer = server.chat(tools=[TOOL])
    assert answer.status_code == 400 and "takes no tools" in answer.json()["error"]["message"]
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


def test_a_call_and_a_form_contradict_each_other(real: Served) -> None:
    fields = {"tools": [TOOL, OTHER], "tool_choice": "required"}
    answer = real.chat(response_format={"type": "json_object"}, **fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tool_choice"
