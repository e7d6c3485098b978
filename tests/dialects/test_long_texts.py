"""The work for a text grows with its length, whatever a model writes: counted, not timed."""

from __future__ import annotations

import pytest
from test_reader import TOOLS, dialect_of

from suffice.dialects import source
from suffice.dialects.reader import Reader

UNITS = {
    "hermes": (
        '<tool_call>{"id":[',
        '<tool_call>{"name": "',
        '<tool_call>{"arguments": "x',
        "<think>",
        "  \n",
    ),
    "mistral": ("[TOOL_CALLS]f", "[TOOL_CALLS][", '[TOOL_CALLS][{"name": "f", "x": "'),
    "glm45": ("<tool_call>f", "<tool_call>f<arg_key>"),
    "qwen3_coder": ("<function=", "<function=f><parameter=a>"),
    "gemma4": ("<|tool_call>call:", '<|tool_call>call:f{a:<|"|>', "<|tool_call>call:f{a:[["),
    "pythonic": ("[[[[",),
    "harmony": ("to=", "<|start|>assistant to=f", "<|channel|>analysis"),
}


@pytest.mark.parametrize("form", UNITS)
def test_searches_see_each_letter_a_few_times(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    find = source.Marks.find

    def counted(self: source.Marks, text: str, start: int, *, ended: bool) -> object:
        nonlocal seen
        end, found = find(self, text, start, ended=ended)
        seen += (len(text) if found is None else found.end()) - start
        return end, found

    monkeypatch.setattr(source.Marks, "find", counted)
    for unit in UNITS[form]:
        text, seen = unit * (20_000 // len(unit)), 0
        reader = Reader(dialect_of(form), tools=TOOLS)
        reader.push(text)
        reader.push("", last=True)
        assert seen < 60 * len(text) and reader._source._again < 1 << 21, unit
