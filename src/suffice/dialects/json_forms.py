"""Calls whose arguments are JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass

from suffice.dialects.form import Form, Read, Sink, attempt, name_before, without_halves
from suffice.dialects.source import Source, json_value, marks_of, quoted_text

_IDENTS = ("id", "type", "tool_call_id", "call_id")  # keys of a call that are no argument
_IDENT = re.compile(r'"[\w\-.:]*"|\d+|null', re.ASCII)


@dataclass
class _Object:
    """What has been read of a call's object."""

    name: str | None = None
    ident: str = ""
    held: str | None = None  # arguments that precede the name
    begun: bool = False
    sound: bool = False  # whether the arguments are JSON: then what follows goes with them


@dataclass(frozen=True)
class Json:
    """{"name": "f", "arguments": {...}}, or a list of such objects; `ident` may come first."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    listed: bool = False
    ident: str = ""
    marks: tuple[str, ...] = ()

    @property
    def first(self) -> str:
        """See `Form`."""
        return "[{" if self.listed else "{"

    def read(self, source: Source, sink: Sink) -> Read:
        """See `Form`."""
        first = yield from source.spaces()
        if first == "[" and self.listed:
            source.at += 1
            return (yield from self._list(source, sink))
        return (yield from self._one(source, sink))

    def _list(self, source: Source, sink: Sink) -> Read:
        begun = False
        while True:
            character = yield from source.spaces()
            if character == "]" or (character == "," and begun):
                source.at += 1
                if character == "]":
                    return begun
            elif not (yield from attempt(source, self._one(source, sink))):
                return begun
            else:
                begun = True

    def _one(self, source: Source, sink: Sink) -> Read:
        """Read an object; return whether a call has begun with it."""
        if (yield from source.spaces()) != "{":
            return False
        source.at += 1
        own = _Object()
        while (character := (yield from source.spaces())) != "}":
            if character == ",":
                source.at += 1
                continue
            source.hold()
            known = yield from self._entry(source, sink, own)
            source.release(back=not known)
            if not known:
                return own.begun
        source.at += 1
        if own.name is None:
            return False
        if not own.begun:
            sink.begin(own.name, own.ident)
            sink.add("{}" if own.held is None else own.held)
            sink.finish()
        return True

    def _entry(self, source: Source, sink: Sink, own: _Object) -> Read:
        """Read a key and its value; return whether they are of a call, and whole.

        Arguments that precede the name wait for it.
        """
        label = yield from self._label(source, sink)
        if label == self.name and own.name is None:
            own.name = yield from _text(source, sink)
            return own.name in sink.names
        if label in self.arguments and not own.begun and own.held is None:
            if own.name is not None:
                return (yield from self._arguments(source, sink, own))
            own.held = yield from _held(source, sink)
            return own.held is not None
        # Of a call that has begun, other keys say nothing that a client could be told.
        if label not in _IDENTS and not (own.sound and label is not None):
            return False
        parts: list[str] = []
        whole = yield from json_value(source, parts.append, sink.stops)
        if own.sound:
            return whole or source.ended
        value = "".join(parts)
        if label != "type":
            own.ident = _unquoted(value)
        return whole and _IDENT.fullmatch(value) is not None

    def _label(self, source: Source, sink: Sink) -> Generator[None, None, str | None]:
        """Read a key and the colon after it."""
        key = yield from _text(source, sink)
        if key is None or (yield from source.spaces()) != ":":
            return None
        source.at += 1
        yield from source.spaces()
        return key

    def _arguments(self, source: Source, sink: Sink, own: _Object) -> Read:
        """Read arguments; return whether they are whole. A call begins with their first brace."""
        first = yield from source.upcoming()
        if first not in ("", "{", '"', "n") or (not first and not source.cut):
            return False
        held: str | None = ""
        if first in ('"', "n"):
            held = yield from _held(source, sink)
            if held is None:
                return False
        own.begun = True
        sink.begin(str(own.name), own.ident)
        sink.add(str(held))
        parts = [str(held)]

        def add(text: str) -> None:
            parts.append(text)
            sink.add(text)

        if not first or (not held and not (yield from json_value(source, add, sink.stops))):
            return False
        sink.finish()
        own.sound = _object("".join(parts)) is not None
        return True


@dataclass(frozen=True)
class Named:
    """A name, what separates it, and the arguments as JSON; `after` may follow them."""

    separator: str = ""
    after: str = ""
    pattern: str = r"(?:functions\.)?(?P<name>[\w.\-/]+?)(?::\d+)?"
    ident: bool = False
    first: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """See `Form`."""
        return (self.separator,) if self.separator else ()

    def read(self, source: Source, sink: Sink) -> Read:
        """See `Form`."""
        yield from source.spaces()
        separators = marks_of(self.separator, "{")
        name = yield from name_before(source, separators)
        found = re.fullmatch(self.pattern, name)
        if found is None or found["name"] not in sink.names:
            return False
        separated = bool(self.separator) and (yield from source.starts(self.separator))
        following = yield from source.spaces()
        if following not in ("{", "") or (not following and not (separated and source.cut)):
            return False
        sink.begin(found["name"], name if self.ident else "")
        if not (yield from json_value(source, sink.add, sink.stops)):
            return True
        sink.finish()
        if self.after:
            yield from source.starts(self.after)
        return True


@dataclass(frozen=True)
class Either:
    """One of two forms: the first, if the text begins like it. `newer`: the other is preferred."""

    one: Form
    other: Form
    newer: bool = False

    @property
    def preferred(self) -> Form:
        """The form of calls that must be made."""
        return self.other if self.newer else self.one

    @property
    def marks(self) -> tuple[str, ...]:
        """See `Form`."""
        return (*self.one.marks, *self.other.marks)

    @property
    def first(self) -> str:
        """See `Form`."""
        return ""

    def read(self, source: Source, sink: Sink) -> Read:
        """See `Form`."""
        character = yield from source.spaces()
        form = self.one if character and character in self.one.first else self.other
        return (yield from form.read(source, sink))


def _text(source: Source, sink: Sink) -> Generator[None, None, str | None]:
    """Read a JSON text; return what it says, None if there is none."""
    quoted = yield from quoted_text(source, sink.stops)
    return None if quoted is None else _unquoted(quoted)


def _unquoted(text: str) -> str:
    """Return what a JSON text says; other values are as they stand."""
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text
    return without_halves(found) if isinstance(found, str) else text


def _held(source: Source, sink: Sink) -> Generator[None, None, str | None]:
    """Read whole arguments; None if they are not whole, or no object."""
    parts: list[str] = []
    whole = yield from json_value(source, parts.append, sink.stops)
    return _object("".join(parts)) if whole else None


def _object(text: str) -> str | None:
    """Return arguments as a JSON object; None if they are none.

    Some models write it as a text, or null or no text for none.
    """
    own = _unquoted(text).strip()
    own = "{}" if own in ("", "null") else own
    try:
        return own if isinstance(json.loads(own, strict=False), dict) else None
    except (ValueError, RecursionError):
        return None
