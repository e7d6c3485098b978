"""Every dialect reads what its family writes, however it is cut, and loses nothing of the rest."""

from __future__ import annotations

import json
import os
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from dialect_writers import CALLS, FORM, TEXTS, THINKING, THOUGHTS, TOOLS, WRITERS, answers
from suffice.dialects import families
from suffice.dialects.dialect import FIRST_SIGN, Dialect, Spelling
from suffice.dialects.reader import Part, Reader

FORMS = (*WRITERS, "harmony")
# Repetitions of a form's mutations; SUFFICE_MUTATIONS=100000 is the long run.
MUTATIONS = int(os.environ.get("SUFFICE_MUTATIONS", "7000")) // len(FORMS)


def dialect_of(form: str, thinking: str = "qwen3") -> Dialect:
    if form == "harmony":
        return families.HARMONY
    calls = families.CALLS[FORM.get(form, form)]
    return Dialect(families.THINKINGS[thinking], calls)


def read(dialect: Dialect, text: str, cuts: Iterable[int] = (), **given: Any) -> tuple[Any, Reader]:
    """Return the parts of a text, joined where they go on, and the reader."""
    reader = Reader(dialect, tools=given.pop("tools", TOOLS), **given)
    edges = sorted({0, *cuts, len(text)})
    found: list[Part] = []
    for start, end in pairwise(edges):
        found += reader.push(text[start:end], last=end == len(text))
    if not text:
        found += reader.push("", last=True)
    joined: list[Part] = []
    for part in found:
        before = joined[-1] if joined else None
        if before and part.kind != "call" and before[::2] == part[::2]:
            joined[-1] = before._replace(text=before.text + part.text)
        else:
            joined.append(part)
    return joined, reader


def of_kind(parts: Sequence[Part], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


def calls_of(parts: Sequence[Part]) -> list[tuple[str, Any]]:
    names = [part.text for part in parts if part.kind == "call"]
    given = [
        "".join(p.text for p in parts if p[0::2] == ("arguments", n)) for n in range(len(names))
    ]
    return [(name, json.loads(text)) for name, text in zip(names, given, strict=True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [False, True], ids=["text", "tokens"])
def test_published_answers_are_read_however_they_are_cut(form: str, tokens: bool) -> None:
    count = 0
    for thinking in THINKING if form == "hermes" else ["qwen3"]:
        dialect = dialect_of(form, thinking)
        spelling = Spelling(dialect, {mark: at for at, mark in enumerate(dialect.marks)})
        for whole, thought, text, calls in answers(form, thinking):
            own = dialect
            if tokens:  # a mark is a character then, whose own letters are not to be found
                whole, own = spelling(whole), spelling.dialect(dialect)
            parts, reader = read(own, whole)
            assert of_kind(parts, "thinking") == thought, whole
            assert of_kind(parts, "text") == text, whole
            assert calls_of(parts) == [(name, dict(given)) for name, given in calls], whole
            assert reader.calls == len(calls) and not reader.broken
            assert read(own, whole, range(len(whole)))[0] == parts, whole
            cuts = random.Random(whole).sample(range(len(whole) + 1), min(len(whole), 9))
            assert read(own, whole, cuts)[0] == parts, whole
            count += 1
    assert count >= 40 or form in ("llama3", "pythonic", "llama4_pythonic")


@pytest.mark.parametrize("form", FORMS)
def test_a_piece_that_passes_is_the_part_that_it_would_be(form: str) -> None:
    dialect, kinds = dialect_of(form), Counter[str]()
    spelling = Spelling(dialect, {mark: at for at, mark in enumerate(dialect.marks)})
    for whole, *_ in answers(form, "qwen3"):
        for text, own in ((whole, dialect), (spelling(whole), spelling.dialect(dialect))):
            reader = Reader(own, tools=TOOLS)
            for piece in re.findall(r"\s?\S{1,4}|\s", text):
                kind = reader.passes(piece)
                found = reader.push(piece)
                if kind is not None:
                    assert found == [Part(kind, piece)], (text, piece)
                    kinds[kind] += 1
    assert min(kinds["text"], kinds["thinking"]) > 50


def test_what_every_form_is_tried_with_is_enough() -> None:
    assert {FORM.get(form, form) for form in WRITERS} == set(families.CALLS)
    assert {*THINKING, "deepseek_r1"} == set(families.THINKINGS)
    assert len(THOUGHTS) * len(TEXTS) * len(CALLS) >= 40


def letters(text: str) -> Counter[str]:
    """Return the letters that no mark and no key has."""
    return Counter(each for each in text if "CYRILLIC" in unicodedata.name(each, ""))


def mutated(whole: str, chance: random.Random) -> str:
    """Return a text with a part that is gone, doubled, moved, or something foreign in it."""
    for _ in range(chance.randint(1, 3)):
        start, end = sorted(chance.choices(range(len(whole) + 1), k=2))
        end = min(end, start + chance.choice([1, 5, 40]))
        place = chance.randrange(len(whole) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            whole = whole[:start] + whole[end:]
        elif kind == 1:
            whole = whole[:place] + whole[start:end] + whole[place:]
        elif kind == 2:
            whole = (
                whole[:place] + chance.choice(["Щ", "Щ ", "}", '"', "]", "\n", "<"]) + whole[place:]
            )
        else:
            moved = whole[start:end]
            rest = whole[:start] + whole[end:]
            place = min(place, len(rest))
            whole = rest[:place] + moved + rest[place:]
    return whole


@pytest.mark.parametrize("form", FORMS)
def test_no_letter_is_lost_and_no_mark_shown_whatever_comes(form: str) -> None:
    dialect = dialect_of(form)
    marks = {mark: at for at, mark in enumerate(dialect.marks) if not mark[0].isalpha()}
    spelling = Spelling(dialect, marks)
    spelled, chance = spelling.dialect(dialect), random.Random(form)
    known = [spelling(whole) for whole, *_ in answers(form, "qwen3")]
    signs = {chr(FIRST_SIGN + at) for at in range(32)}
    for _ in range(MUTATIONS):
        text = mutated(chance.choice(known), chance)
        parts, _ = read(spelled, text)
        shown = "".join(part.text + part.ident for part in parts)
        assert letters(shown) >= letters(text), text
        assert not signs & set(shown), text
        cuts = chance.sample(range(len(text) + 1), min(len(text), 6))
        assert read(spelled, text, cuts)[0] == parts, text


def test_a_law_that_a_broken_reader_fails() -> None:
    class Lossy(Reader):
        def push(self, text: str, *, last: bool = False, cut: bool = False) -> list[Part]:
            return super().push(text.replace("Щ", ""), last=last, cut=cut)

    reader = Lossy(dialect_of("hermes"), tools=TOOLS)
    parts = reader.push("Щ да", last=True)
    assert not letters(of_kind(parts, "text")) >= letters("Щ да")


@pytest.mark.parametrize(
    ("text", "opened", "thought", "shown"),
    [
        ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
        ("Hm.", True, "Hm.", ""),
        ("<think>Hm.", False, "Hm.", ""),
        ("<think></think>Yes.", False, "", "Yes."),
        ("Yes.</think> No.", False, "", "Yes. No."),
        ("<think>a</think>b<think>c</think>d", False, "ac", "bd"),
        ("  Yes. \n", False, "", "  Yes. \n"),
    ],
)
def test_thinking(text: str, opened: bool, thought: str, shown: str) -> None:
    parts, _ = read(dialect_of("hermes"), text, opened=opened)
    assert (of_kind(parts, "thinking"), of_kind(parts, "text")) == (thought, shown)


def test_a_call_ends_thinking_that_was_not_closed() -> None:
    text = '<think>I call.\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>\nNow.'
    parts, _ = read(dialect_of("hermes"), text)
    assert [part[:2] for part in parts] == [
        ("thinking", "I call."),
        ("call", "stop"),
        ("arguments", "{}"),
        ("text", "Now."),
    ]
    talk = "<think>One writes <tool_call> before it.</think>Yes."
    parts, reader = read(dialect_of("hermes"), talk)
    assert of_kind(parts, "thinking") == "One writes  before it." and not reader.calls


def test_without_tools_a_call_is_text() -> None:
    text = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    assert of_kind(read(dialect_of("hermes"), text, tools=None)[0], "text") == text
    (part,) = read(
        families.HARMONY, "<|channel|>commentary to=functions.f<|message|>{}", tools=None
    )[0]
    assert part == ("thinking", "{}", 0, "")


def test_other_names_than_the_tools_make_no_call_without_marks() -> None:
    text = '{"name": "Ada", "parameters": {"born": 1815}}'
    assert of_kind(read(dialect_of("llama3"), text)[0], "text") == text
    assert of_kind(read(dialect_of("pythonic"), "[sum(a=1)]")[0], "text") == "[sum(a=1)]"


@pytest.mark.parametrize(
    "text",
    [
        '{"arguments": {"city": "Ош"}, "name": "weather", "id": "x1"}',
        '{"id": "1", "type": "function", "name": "weather", "arguments": "{\\"city\\": \\"Ош\\"}"}',
        ' {\n "name" : "weather" ,\n "parameters" : {"city": "Ош"}\n} ',
    ],
)
def test_parameters_in_another_order_and_form(text: str) -> None:
    for cuts in ((), range(len(text) + 30)):
        whole = f"<tool_call>{text}</tool_call>"
        assert calls_of(read(dialect_of("hermes"), whole, cuts)[0]) == [("weather", {"city": "Ош"})]


def test_arguments_come_as_they_grow() -> None:
    for form in FORMS:
        dialect = dialect_of(form)
        whole = next(text for text, _, said, calls in answers(form, "qwen3") if len(calls) == 2)
        reader = Reader(dialect, tools=TOOLS)
        pushes = sum(
            any(part.kind == "arguments" for part in reader.push(each, last=False))
            for each in whole
        )
        assert pushes > (3 if "pythonic" in form else 12), form


def test_a_model_that_writes_reserved_characters_breaks_nothing() -> None:
    text = f"{chr(FIRST_SIGN)}Щ{chr(FIRST_SIGN + 31)}"
    assert of_kind(read(dialect_of("hermes"), text)[0], "text") == text


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "", "arguments": {"a": 1}}',
        '{"name": "\\ud83d", "arguments": {}}',
        '{"name": "stop", "arguments": "{\\"a\\": \\"\\ud83d\\"}"}',
        '{"arguments": "\\ud83d", "name": "stop"}',
    ],
)
def test_names_and_halves_of_characters_break_nothing(call: str) -> None:
    for form in ("hermes", "harmony"):
        whole = f"<tool_call>{call}</tool_call>"
        if form == "harmony":
            whole = f"<|channel|>commentary to=functions.<|message|>{call}"
        parts, reader = read(dialect_of(form), whole)
        for part in parts:
            part.text.encode()
        assert sum(part.kind == "call" for part in parts) == reader.calls


def test_a_call_within_thinking_is_thinking_where_one_must_be_made() -> None:
    inner = '<tool_call>{"name": "stop", "arguments": {}}</tool_call> no'
    outer = '</think><tool_call>{"name": "weather", "arguments": {"city": "a"}}</tool_call>'
    parts, _ = read(dialect_of("hermes"), inner + outer, opened=True, obliged=["weather"])
    assert calls_of(parts) == [("weather", {"city": "a"})]
    assert '"stop"' in of_kind(parts, "thinking")


def test_words_around_marks_that_mean_nothing_stay_apart() -> None:
    text = "Write <tool_call> and </tool_call> around it."
    assert of_kind(read(dialect_of("hermes"), text)[0], "text").split() == [
        *("Write", "and", "around", "it.")
    ]


def test_a_line_break_that_is_a_token_is_no_mark() -> None:
    dialect = dialect_of("gemma4", "gemma4")
    tokens = {"<|channel>": 1, "<channel|>": 2, "\n": 3, "\n\n": 4, "```": 5, "thought": 6}
    assert set(Spelling(dialect, tokens).token_ids) == {1, 2}
