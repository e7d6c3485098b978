"""A text that comes in pieces, read by generators that wait for more of it.

A reader is written as if the whole text were there: it yields where it needs more. What it finds
does not depend on where the pieces end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterable

_SPACES = " \t\r\n"
_MOST_AGAIN = 1 << 20  # characters


class Marks:
    """Texts that are looked for; where one begins another, the longer is preferred."""

    def __init__(self, marks: Iterable[str]) -> None:
        self.texts = tuple(dict.fromkeys(filter(None, marks)))
        longest = sorted(self.texts, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest)) or r"(?!)")
        firsts = "".join(re.escape(each[0]) for each in self.texts)
        self.firsts = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        self._starts = {mark[:size] for mark in self.texts for size in range(1, len(mark))}
        self._longest = max(map(len, self.texts), default=0)

    def find(self, text: str, start: int, *, ended: bool) -> tuple[int, re.Match[str] | None]:
        """Return how far the text is certain to hold no mark, and the mark there if one is.

        A mark is none yet while one that begins there, or earlier, may still become whole.
        """
        found = self.pattern.search(text, start)
        if ended:
            return (found.start() if found else len(text)), found
        held = self.held(text, start)
        if found is not None and found.start() < held:
            return found.start(), found
        return held, None

    def held(self, text: str, start: int) -> int:
        """Return where the longest end of a text begins that may become a mark."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[at:] in self._starts:
                return at
        return len(text)


class Source:
    """The text that has come and has not been read.

    Attributes:
        at: Where reading goes on.
        ended: Whether no more text will come.
        cut: Whether it ended because it had no more tokens.
        passing: What finds a character with which a mark begins, and what takes a piece that has
            none; None while a part of the text is held.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = self.cut = False
        self.passing: tuple[re.Pattern[str], Callable[[str], None]] | None = None
        self._held: list[int] = []
        self._again = 0  # characters that are read again

    @property
    def tired(self) -> bool:
        """Whether so much was read again that nothing more should be."""
        return self._again > _MOST_AGAIN

    def add(self, text: str) -> None:
        """Add a piece."""
        self.text += text

    def drop(self) -> None:
        """Forget what has been read and is not held."""
        first = min(self._held, default=self.at)
        if first:
            self.text, self.at = self.text[first:], self.at - first
            self._held = [place - first for place in self._held]

    def hold(self) -> None:
        """Begin what may be read again."""
        self._held.append(self.at)

    def release(self, *, back: bool = False) -> None:
        """End what `hold` has begun, or nothing after `settle`; `back`: reading goes on there."""
        if self._held:
            place = self._held.pop()
            if back:
                self._again += self.at - place
                self.at = place

    def settle(self) -> None:
        """End all that has begun: nothing goes back."""
        self._held = []

    @property
    def done(self) -> bool:
        """Whether all has been read."""
        return self.ended and self.at >= len(self.text)

    def upcoming(self) -> Generator[None, None, str]:
        """Return the next character, without reading it; "" at the end."""
        while self.at >= len(self.text) and not self.ended:
            yield
        return self.text[self.at : self.at + 1]

    def spaces(self) -> Generator[None, None, str]:
        """Read white space; return the character after it, without reading that."""
        while True:
            character = yield from self.upcoming()
            if not character or character not in _SPACES:
                return character
            self.at += 1

    def starts(self, text: str) -> Generator[None, None, bool]:
        """Whether the text goes on like this; if so, it is read."""
        while len(self.text) - self.at < len(text) and not self.ended:
            if not text.startswith(self.text[self.at :]):
                return False
            yield
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def until(self, marks: Marks, sink: Callable[[str], None]) -> Generator[None, None, str | None]:
        """Hand the text before the next mark to `sink`, as it comes; return the mark.

        The mark is read. None at the end of the text.
        """
        while True:
            end, found = marks.find(self.text, self.at, ended=self.ended)
            if end > self.at:
                sink(self.text[self.at : end])
            self.at = end if found is None else found.end()
            if found is not None:
                return found[0]
            if self.ended:
                return None
            if self.at == len(self.text) and not self._held:
                self.passing = marks.firsts, sink
            yield
            self.passing = None


@functools.cache
def marks_of(*texts: str) -> Marks:
    """Return marks, made once: every answer looks for the same ones."""
    return Marks(texts)


def text_until(
    source: Source, closes: tuple[str, ...], sink: Callable[[str], None], stops: str
) -> Generator[None, None, bool]:
    """Hand the text before a closing mark to `sink`; return whether there was one.

    It is read. One of the characters `stops` ends the text as well, and stays.
    """
    mark = yield from source.until(marks_of(*closes, *stops), sink)
    if mark is not None and mark not in closes:
        source.at -= len(mark)
    return mark in closes


@functools.cache
def _value_ends(stops: str) -> re.Pattern[str]:
    """Return what finds the characters of a JSON value that are not of its texts."""
    return re.compile(rf'["\\{{}}\[\]{re.escape(stops)}]')


def json_value(
    source: Source, sink: Callable[[str], None], stops: str
) -> Generator[None, None, bool]:
    """Hand a JSON value to `sink`, as it comes; whether it came to its end.

    Objects, lists and texts are told by their brackets and quotes alone: what a model writes need
    not be JSON. One of the characters `stops` ends it anywhere.
    """
    depth, quoted = 0, False
    ends = _value_ends(stops)
    first = yield from source.upcoming()
    if first not in '{["':
        return (yield from _plain_value(source, sink, stops))
    while True:
        found = ends.search(source.text, source.at)
        if found is None:
            sink(source.text[source.at :])
            source.at = len(source.text)
            if source.ended:
                return False
            yield
            continue
        sink(source.text[source.at : found.start()])
        source.at = found.start()
        character = found[0]
        if character in stops:
            return False
        if character == "\\" and quoted:
            while len(source.text) - source.at < 2 and not source.ended:
                yield
            pair = source.text[source.at : source.at + 2]
            if len(pair) < 2 or pair[1] in stops:
                return False
            sink(pair)
            source.at += 2
            continue
        sink(character)
        source.at += 1
        if character == '"':
            quoted = not quoted
        elif not quoted and character in "{[":
            depth += 1
        elif not quoted and character in "}]":
            depth -= 1
        if depth <= 0 and not quoted and character != "\\":
            return True


def _plain_value(
    source: Source, sink: Callable[[str], None], stops: str
) -> Generator[None, None, bool]:
    """Hand a number, or a word such as true, to `sink`."""
    size = 0
    while True:
        character = yield from source.upcoming()
        if not character or character in ",}];" + _SPACES + stops:
            return size > 0 and bool(character)
        sink(character)
        source.at += 1
        size += 1


def quoted_text(source: Source, stops: str) -> Generator[None, None, str | None]:
    """Read a JSON text; return it with its quotes, None if there is none or it does not end."""
    if (yield from source.upcoming()) != '"':
        return None
    parts: list[str] = []
    whole = yield from json_value(source, parts.append, stops)
    return "".join(parts) if whole else None
