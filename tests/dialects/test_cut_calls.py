"""What a cut leaves of a call, and calls that must be made."""

from __future__ import annotations

import pytest

from suffice.dialects.dialect import Dialect
from suffice.dialects.families import CALLS, HARMONY, THINKINGS
from suffice.dialects.reader import Reader

CALL = '{"name": "time", "arguments": {"zone": "é}{"}}'
LLAMA = CALL.replace("arguments", "parameters")
WHOLE = {
    "hermes": f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>",
    "llama3": f"{LLAMA};{LLAMA}",
}


def reader_of(form: str, names: list[str], *, obliged: bool = False) -> Reader:
    dialect = Dialect(THINKINGS["qwen3"], CALLS[form])
    return Reader(dialect, tools=dict.fromkeys(names), obliged=names if obliged else ())


def pushed(reader: Reader, text: str, *, cut: bool) -> tuple[str, list[tuple[str, str]]]:
    """Return the content of a text in two pieces, and its calls."""
    middle = len(text) // 2
    parts = [*reader.push(text[:middle]), *reader.push(text[middle:], last=True, cut=cut)]
    content = "".join(part.text for part in parts if part.kind == "text")
    names = [part.text for part in parts if part.kind == "call"]
    given = ["" for _ in names]
    for part in parts:
        if part.kind == "arguments":
            given[part.call] += part.text
    return content, list(zip(names, given, strict=True))


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        ("hermes", '<tool_call>{"na', '{"na', []),
        ("hermes", '<tool_call>{"name": "time"', '{"name": "time"', []),
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
        ("hermes", "hello <b> there", "hello <b> there", []),
        ("hermes", "<tool_call>{oops</tool_call> x", "{oops x", []),
        ("hermes", "<tool_call>[1]</tool_call>", "[1]", []),
        ("hermes", "1 <tool", "1 <tool", []),
        ("hermes", "<tool_call>" + "[" * 5000, "[" * 5000, []),
        ("llama3", "{not a call}", "{not a call}", []),
        ("llama3", f"{LLAMA} and more", "and more", [("time", '{"zone": "é}{"}')]),
        ("llama3", "", "", []),
    ],
)
def test_what_is_left(form: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    reader = reader_of(form, ["time", 't"'])
    assert pushed(reader, text, cut=True) == (content, calls)
    assert reader.broken == (bool(calls) and calls[-1][1] != '{"zone": "é}{"}')
    other = reader_of(form, ["time", 't"'])
    pushed(other, text, cut=False)
    assert other.calls <= len(calls), "what ends by itself is no cut call"


@pytest.mark.parametrize(
    ("call", "content", "given"),
    [
        ('{"name": "time", "arguments": [1]}', '{"name": "time", "arguments": [1]}', []),
        ('{"name": "time", "arguments": "now"}', '{"name": "time", "arguments": "now"}', []),
        ('{"arguments": [1], "name": "time"}', '{"arguments": [1], "name": "time"}', []),
        ('{"name": "time", "arguments": ""}', "", ["{}"]),
        ('{"name": "time", "arguments": null, "requestor": "user"}', "", ["{}"]),
        ('{"name": "time", "arguments": {"a": 1}, "index": 0, "done": true}', "", ['{"a": 1}']),
        ('{"name": "time", "arguments": {}, "why": "It\'s Щ", "is": {"a": [1]}}', "", ["{}"]),
        ('{"name": "time", "arguments": {a}, "why": "Щ"}', '"why": "Щ"}', ["{a}"]),
        ('{"name": "time", "arguments": "{a}"}', '{"name": "time", "arguments": "{a}"}', []),
        ('{"name": "none", "arguments": {}}', '{"name": "none", "arguments": {}}', []),
    ],
)
def test_what_is_a_call(call: str, content: str, given: list[str]) -> None:
    """Its arguments are an object; other keys after them say nothing; no other name makes one."""
    for end in ("", "</tool_call>"):
        reader = reader_of("hermes", ["time"])
        found, calls = pushed(reader, f"<tool_call>{call}{end}", cut=False)
        assert (found, [each for _, each in calls]) == (content, given)
        assert not reader.broken or content


def test_a_message_to_a_tool_is_a_call_if_it_is_an_object() -> None:
    head = "<|channel|>commentary to=functions.time <|constrain|>json<|message|>"
    for body, given in (("{}", "{}"), ("", "{}"), (' {"a": 1}', ' {"a": 1}'), ("x = 1", None)):
        reader = Reader(HARMONY, tools={"time": None})
        parts = [part for each in head + body for part in reader.push(each)]
        parts += reader.push("", last=True)
        text = "".join(part.text for part in parts if part.kind != "call")
        assert reader.calls == (given is not None) and text == (given or body)
        assert {part.kind for part in parts} == ({"call", "arguments"} if given else {"thinking"})


@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.parametrize("names", [["time"], ["time", "timer"], ["time", "stop"]])
def test_a_call_that_must_be_made_is_never_content(form: str, names: list[str]) -> None:
    whole, counts = WHOLE[form], []
    for end in range(1, len(whole) + 1):
        reader = reader_of(form, names, obliged=True)
        content, calls = pushed(reader, whole[:end], cut=end < len(whole))
        assert content == ""
        assert all(name == "time" and '{"zone": "é}{"}'.startswith(given) for name, given in calls)
        counts.append(len(calls))
    assert counts == sorted(counts), "what has come stays"
    named = whole.index('"ti' if "stop" in names else 'e",' if "timer" in names else whole[0])
    assert counts.index(1) <= named + 3 and counts[-1] == 2
    assert counts[0] == (1 if names == ["time"] else 0)
