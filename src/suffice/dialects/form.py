"""What forms of calls share: where a call goes, and how its name is read."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from typing import Any, Protocol

from suffice.dialects.source import Marks, Source

Read = Generator[None, None, bool]
NAME = re.compile(r"[\w.\-:/]+")
_LONGEST_NAME = 256


class Sink(Protocol):
    """Takes a call as it comes.

    Attributes:
        stops: Characters that are marks: none of them is in a call's arguments.
        end: The mark that follows a call, if there is one.
        names: Those of the tools: no other name makes a call.
        tools: The schema of each tool's parameters, by name.
        begun: Whether a call has begun.
    """

    stops: str
    end: str
    names: frozenset[str]
    tools: Mapping[str, Any]
    begun: bool

    def begin(self, name: str, ident: str = "") -> None:
        """A call of this name begins: nothing takes it back."""

    def add(self, arguments: str) -> None:
        """Its arguments go on."""

    def finish(self) -> None:
        """It is whole."""


class Form(Protocol):
    """How a call is written between its marks."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks within it that may be tokens."""
        ...

    @property
    def first(self) -> str:
        """The characters that it may begin with; "" for any."""
        ...

    def read(self, source: Source, sink: Sink) -> Read:
        """Read a call, or several; return whether one has begun.

        If none has, the reader goes back.
        """
        ...


def attempt(source: Source, reading: Read) -> Read:
    """Read one more call; go back if there is none."""
    source.hold()
    begun = yield from reading
    source.release(back=not begun)
    return begun


def name_before(source: Source, ends: Marks) -> Generator[None, None, str]:
    """Read up to a mark, which stays; "" if what precedes it is too long for a name."""
    start = source.at
    while True:
        most = start + _LONGEST_NAME  # what is longer is not searched: there may be much of it
        text = source.text[start : most + 1]
        whole = source.ended or len(source.text) > most
        end, found = ends.find(text, 0, ended=whole)
        if found is not None or (whole and len(text) <= _LONGEST_NAME):
            source.at = start + end
            return text[:end]
        if whole:
            source.at = len(source.text)
            return ""
        yield
        start = source.at  # what was read before may be gone


def without_halves(text: str) -> str:
    """Return a text with U+FFFD for halves of characters, which JSON's escapes may leave alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def escaped(text: str) -> str:
    """Return a text as it stands in a JSON text."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
