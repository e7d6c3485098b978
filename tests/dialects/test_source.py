"""Marks in texts that come in pieces, values of JSON, and forms of calls one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from suffice.dialects.form import escaped, name_before
from suffice.dialects.json_forms import Json
from suffice.dialects.other_forms import Tagged, converted
from suffice.dialects.schemas import kinds_of, properties_of
from suffice.dialects.source import Marks, Source, json_value, quoted_text, text_until


def run(make: Callable[[Source], Generator[None, None, Any]], text: str, size: int) -> Any:
    """Return what a reader gives for a text in pieces, and what it has not read."""
    source = Source()
    steps = make(source)
    for start in range(0, len(text) + size, size):
        source.add(text[start : start + size])
        source.ended = start + size >= len(text) + size
        try:
            next(steps)
        except StopIteration as stopped:
            source.add(text[start + size :])
            return stopped.value, source.text[source.at :]
    raise AssertionError("it waits for more than there is")


@pytest.mark.parametrize("size", [1, 2, 50])
@pytest.mark.parametrize(
    ("text", "before", "mark", "rest"),
    [
        ("ab<x>c", "ab", "<x>", "c"),
        ("ab<xyz>c", "ab", "<xyz>", "c"),
        ("a<x", "a<x", None, ""),
        ("a long``` mark", "a ", "long``` mark", ""),
        ("a long``` marx", "a long", "```", " marx"),
        ("<<x>", "<", "<x>", ""),
        ("", "", None, ""),
    ],
)
def test_a_mark_is_found(text: str, before: str, mark: str | None, rest: str, size: int) -> None:
    found: list[str] = []
    marks = Marks(["<x>", "<xyz>", "```", "long``` mark", ""])
    assert run(lambda source: source.until(marks, found.append), text, size) == (mark, rest)
    assert "".join(found) == before


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize(
    ("text", "value", "whole", "rest"),
    [
        ('{"a": [1, "}"]} x', '{"a": [1, "}"]}', True, " x"),
        ('"a\\"b" x', '"a\\"b"', True, " x"),
        ("12, 3", "12", True, ", 3"),
        ("true", "true", False, ""),
        ('{"a": "', '{"a": "', False, ""),
        ('{"a!": 1}', '{"a', False, '!": 1}'),
        ('"\\', '"', False, "\\"),
        ("[[]]]", "[[]]", True, "]"),
    ],
)
def test_a_value_of_json(text: str, value: str, whole: bool, rest: str, size: int) -> None:
    found: list[str] = []
    assert run(lambda source: json_value(source, found.append, "!"), text, size) == (whole, rest)
    assert "".join(found) == value


@pytest.mark.parametrize("size", [1, 50])
def test_texts_and_names(size: int) -> None:
    assert run(lambda source: quoted_text(source, "!"), '"a b"c', size) == ('"a b"', "c")
    assert run(lambda source: quoted_text(source, "!"), "a", size)[0] is None
    assert run(lambda source: name_before(source, Marks(["("])), "f(", size) == ("f", "(")
    assert run(lambda source: name_before(source, Marks(["("])), "f" * 999, size)[0] == ""
    parts: list[str] = []
    assert run(lambda source: text_until(source, ("]",), parts.append, "!"), "a!]", size) == (
        False,
        "!]",
    )


def test_what_is_held_can_be_read_again() -> None:
    source = Source()
    source.add("abcdef")
    source.at = 2
    source.hold()
    source.at = 4
    source.drop()
    source.release(back=True)
    assert source.text[source.at :] == "cdef"
    source.hold()
    source.at += 1
    source.settle()
    source.release(back=True)
    assert source.text[source.at :] == "def", "after `settle` nothing goes back"


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": [1]}, set()),
        (None, set()),
        ([], set()),
    ],
)
def test_kinds_of_a_schema(schema: Any, kinds: set[str]) -> None:
    assert kinds_of(schema) == kinds
    assert properties_of({"properties": {"a": schema}}) == {"a": schema}
    assert properties_of(schema) == {}


@pytest.mark.parametrize(
    ("text", "kinds", "found"),
    [
        ("12", {"integer"}, "12"),
        ("12", {"string", "null"}, '"12"'),
        ("null", {"string", "null"}, "null"),
        ("True", {"boolean"}, "true"),
        ("a b", {"integer"}, '"a b"'),
        ("[1]", set(), "[1]"),
    ],
)
def test_a_value_becomes_what_its_schema_says(text: str, kinds: set[str], found: str) -> None:
    assert converted(text, kinds) == found
    assert escaped('a"\n') == 'a\\"\\n'


def test_marks_of_forms() -> None:
    assert Json().first == "{" and Json(listed=True).first == "[{"
    form = Tagged("\n", "<k>", ">", "</v>", value="<v>")
    assert form.marks == ("<k>", "<v>", "</v>"), "a bracket alone is no mark"
