"""Calls whose arguments are written in another way than JSON: with tags, as Python, in braces."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from suffice.dialects.form import (
    NAME,
    Read,
    Sink,
    attempt,
    escaped,
    name_before,
    without_halves,
)
from suffice.dialects.schemas import kinds_of, properties_of
from suffice.dialects.source import Source, json_value, marks_of, text_until

_KEYWORD = re.compile(r"\s*[^\W\d]\w*\s*=(?!=)")


@dataclass(frozen=True)
class Tagged:
    """A name, and each parameter between tags.

    A parameter whose schema is a text's is one, whatever it looks like; others are JSON if they can
    be. `said` is what follows a key and says that the value is a text, or another value. `lines`
    says that a line break after a value's opening and before its closing is the tags'.
    """

    name_end: str
    key: str
    key_end: str
    close: str
    value: str = ""
    said: tuple[str, str] = ("", "")
    lines: bool = True
    first: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """See `Form`."""
        found = (self.name_end, self.key, self.key_end, self.value, self.close)
        return tuple(mark for mark in found if len(mark) > len('">') or not mark.isascii())

    def read(self, source: Source, sink: Sink) -> Read:
        """See `Form`."""
        ends = marks_of(self.name_end, self.key, sink.end)
        yield from source.spaces()
        name = (yield from name_before(source, ends)).strip()
        if not NAME.fullmatch(name) or name not in sink.names:
            return False
        if not (yield from source.upcoming()) and source.cut:
            return False  # the name may go on
        yield from source.starts(self.name_end)
        sink.begin(name)
        kinds, begun = properties_of(sink.tools.get(name)), False
        while True:
            yield from source.spaces()
            if not (yield from source.starts(self.key)):
                break
            sink.add(", " if begun else "{")
            begun = True
            if not (yield from self._parameter(source, sink, kinds)):
                return True
        if source.done and source.cut:
            return True
        sink.add("}" if begun else "{}")
        sink.finish()
        return True

    def _parameter(self, source: Source, sink: Sink, schemas: Mapping[str, Any]) -> Read:
        """Read a key and its value; return whether the value is whole."""
        parts: list[str] = []
        if not (yield from text_until(source, (self.key_end,), parts.append, sink.stops)):
            sink.add(f'"{escaped("".join(parts))}')
            return False
        if self.value:
            yield from source.spaces()
            yield from source.starts(self.value)
        key = "".join(parts).strip()
        sink.add(f"{json.dumps(key, ensure_ascii=False)}: ")
        closes = (f"\n{self.close}", self.close) if self.lines else (self.close,)
        kinds = kinds_of(schemas.get(key))
        says_text, says_other = self.said
        text = not kinds or kinds == {"string"}
        if says_text and (yield from source.starts(says_text)):
            text |= "string" in kinds
        elif says_other and (yield from source.starts(says_other)):
            text &= bool(kinds)
        if self.lines:
            yield from source.starts("\n")
        if text:
            sink.add('"')
            add = _adding(sink)
            if not (yield from text_until(source, closes, add, sink.stops)):
                return False
            sink.add('"')
            return True
        value: list[str] = []
        if not (yield from text_until(source, closes, value.append, sink.stops)):
            sink.add("".join(value))
            return False
        sink.add(converted("".join(value), kinds))
        return True


@dataclass(frozen=True)
class Pythonic:
    """[f(a=1, b="x"), g()]: Python's calls, in a list or alone."""

    first: str = "["
    marks: tuple[str, ...] = ()

    def read(self, source: Source, sink: Sink) -> Read:
        """See `Form`."""
        listed = (yield from source.spaces()) == "["
        source.at += listed
        begun = False
        while True:
            character = yield from source.spaces()
            if character == "," and begun:
                source.at += 1
            elif character == "]" and listed:
                source.at += 1
                return begun
            elif not (yield from attempt(source, self._call(source, sink))):
                return begun
            else:
                begun = True
                if not listed:
                    return True

    def _call(self, source: Source, sink: Sink) -> Read:
        name = (yield from name_before(source, marks_of("("))).strip()
        if not NAME.fullmatch(name) or name not in sink.names:
            return False
        if not (yield from source.starts("(")):
            return False
        sink.begin(name)
        known = list(properties_of(sink.tools.get(name)))
        count = 0
        while True:
            character = yield from source.spaces()
            if character == ")":
                source.at += 1
                break
            text, whole = yield from _python_value(source, sink.stops)
            key, _, value = text.partition("=") if _KEYWORD.match(text) else ("", "", text)
            key = key.strip() or (known[count] if count < len(known) else str(count))
            sink.add(", " if count else "{")
            value = value.strip()
            shown = _of_python(value) if whole else _begun_python(value)
            sink.add(f"{json.dumps(key, ensure_ascii=False)}: {shown}")
            if not whole:
                return True
            count += 1
            if (yield from source.upcoming()) == ",":
                source.at += 1
        sink.add("}" if count else "{}")
        sink.finish()
        return True


@dataclass(frozen=True)
class Braced:
    """call:f{key:<quote>text<quote>,other:1}: values of JSON with a quote of their own."""

    quote: str
    before: str = "call:"
    first: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """See `Form`."""
        return (self.quote,)

    def read(self, source: Source, sink: Sink) -> Read:
        """See `Form`."""
        yield from source.spaces()
        if not (yield from source.starts(self.before)):
            return False
        name = (yield from name_before(source, marks_of("{"))).strip()
        if not NAME.fullmatch(name) or name not in sink.names:
            return False
        if (yield from source.upcoming()) != "{":
            return False
        sink.begin(name)
        if (yield from self._value(source, sink)):
            sink.finish()
        return True

    def _value(self, source: Source, sink: Sink) -> Read:
        character = yield from source.spaces()
        if (yield from source.starts(self.quote)):
            return (yield from self._quoted(source, sink))
        if character == '"':
            return (yield from json_value(source, sink.add, sink.stops))
        if character in ("{", "["):
            return (yield from self._several(source, sink, "}" if character == "{" else "]"))
        parts: list[str] = []
        ends = ",}]" + sink.stops
        while (character := (yield from source.upcoming())) and character not in ends:
            parts.append(character)
            source.at += 1
        plain = "".join(parts).strip()
        whole = bool(character) and character not in sink.stops
        sink.add(converted(plain, set()) if whole else plain)
        return whole

    def _quoted(self, source: Source, sink: Sink) -> Read:
        sink.add('"')
        if not (yield from text_until(source, (self.quote,), _adding(sink), sink.stops)):
            return False
        sink.add('"')
        return True

    def _several(self, source: Source, sink: Sink, close: str) -> Read:
        sink.add(source.text[source.at])
        source.at += 1
        begun = False
        while True:
            character = yield from source.spaces()
            if not character or (character in sink.stops and not self._quotes(character)):
                return False
            if character in (close, ","):
                source.at += 1
                if character == ",":
                    continue
                sink.add(close)
                return True
            if character in "}]":
                return False
            sink.add(", " if begun else "")
            begun = True
            if close == "}" and not (yield from self._key(source, sink)):
                return False
            if not (yield from self._value(source, sink)):
                return False

    def _quotes(self, character: str) -> bool:
        return self.quote.startswith(character)

    def _key(self, source: Source, sink: Sink) -> Read:
        parts: list[str] = []
        quoted = yield from source.starts(self.quote)
        close = (self.quote if quoted else ":",)
        whole = yield from text_until(source, close, parts.append, sink.stops)
        if whole and quoted:
            whole = yield from text_until(source, (":",), parts.append, sink.stops)
        if not whole:
            sink.add(f'"{escaped("".join(parts))}')
            return False
        sink.add(f"{json.dumps(''.join(parts).strip(), ensure_ascii=False)}: ")
        return True


def _adding(sink: Sink) -> Callable[[str], None]:
    """Return what adds a text's part to arguments."""
    return lambda text: sink.add(escaped(text))


def converted(text: str, kinds: set[str]) -> str:
    """Return the JSON of a value that a model wrote as text; `kinds` are those of its schema."""
    plain = text.strip()
    if plain in ("None", "True", "False"):  # Qwen's models write Python's
        plain = {"None": "null", "True": "true", "False": "false"}[plain]
    try:
        value = json.loads(plain)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if "string" in kinds and not kinds & _kinds_of_value(value):
        return json.dumps(text, ensure_ascii=False)
    return plain


def _kinds_of_value(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return {names.get(type(value), "null")}


def _python_value(source: Source, stops: str) -> Generator[None, None, tuple[str, bool]]:
    """Read an argument up to the comma or bracket after it, and whether it is whole."""
    parts: list[str] = []
    depth, quote = 0, ""
    while True:
        character = yield from source.upcoming()
        if not character or character in stops:
            return "".join(parts), False
        if character == "\\" and quote:
            while len(source.text) - source.at < 2 and not source.ended:
                yield
            pair = source.text[source.at : source.at + 2]
            if pair[1:] in stops:  # the text ends, or a mark comes
                parts.append("\\")
                source.at += 1
                continue
            parts.append(pair)
            source.at += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif depth == 0 and character in ",)":
            return "".join(parts), True
        elif character in ")]}":
            depth -= 1
        parts.append(character)
        source.at += 1


def _begun_python(text: str) -> str:
    """Return the beginning of a literal's JSON."""
    return f'"{escaped(text[1:])}' if text[:1] in ("'", '"') else text


def _of_python(text: str) -> str:
    """Return the JSON of a Python literal; of what is none, the text itself."""
    try:
        return without_halves(json.dumps(ast.literal_eval(text), ensure_ascii=False))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return converted(text, set())
