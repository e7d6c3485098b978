"""Tells thinking, answers and calls of tools apart in a text, as it comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from suffice.dialects.dialect import FIRST_SIGN, MOST_SIGNS, Dialect
from suffice.dialects.form import escaped
from suffice.dialects.source import Marks, Source, marks_of

Kind = Literal["text", "thinking", "call", "arguments"]
_SIGNS = "".join(map(chr, range(FIRST_SIGN, FIRST_SIGN + MOST_SIGNS)))
_WORD = re.compile(r"[^\s\"'<>{}()\[\]:=|]*\Z")
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)("?)')
_TO = re.compile(r"\bto=([^\s<]+)")
_LONGEST_HEADER = 256  # characters before its first mark
_HEAD = re.compile(
    r"(?:assistant ?)?(?:to=\S* ?)?(?:(?:analysis|commentary|final) ?)?(?:to=\S* ?)?(?:json|code)?"
)


class Part(NamedTuple):
    """A part of an answer.

    Attributes:
        kind: A "call" begins a call; its text is the name. "arguments" go on with it.
        call: The number of the call, for these two.
        ident: The id that the model gave the call; "" for none.
    """

    kind: Kind
    text: str
    call: int = 0
    ident: str = ""


class Reader:
    """Reads one answer. The same text gives the same parts, however it is cut into pieces.

    White space next to a mark counts as a part of it. What begins like a call and is none is text.

    Attributes:
        calls: How many calls have begun.
        broken: Whether the last call was cut.
        thinks: Whether the text goes on with thinking.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        opened: bool = False,
        tools: Mapping[str, Any] | None = None,
        obliged: Sequence[str] = (),
        held: bool = False,
        several: bool = True,
    ) -> None:
        """Begin an answer.

        `dialect` is spelled as the model's texts are. `opened` says that the prompt has begun the
        thinking. `tools` are the schemas of parameters by name; without them there are no calls.
        `obliged` are tools, one of them called because a grammar makes sure: then nothing of the
        answer is text, however it ends. `held` says that a grammar holds calls to their tools,
        which begins where thinking ends: within thinking there are none then. Unless there may be
        `several`, all calls but the first are left out.
        """
        self.calls = 0
        self.broken = False
        self._source = Source()
        self._found: list[Part] = []
        self._dialect = dialect
        self._tools = tools
        self._obliged = tuple(obliged)
        self._held = held or bool(obliged)
        self._several = several
        self._spaces = ""  # held until it is known whether a mark follows
        self._skips = False  # white space, since a mark came before
        # What takes the text now, and as which kind, where it becomes a part as it comes.
        self._prose_now: tuple[Callable[[str], None] | None, Kind] = None, "text"
        self._coming = ""  # the tool that a message is to, before its arguments
        self._calls_now = self._filled = False  # whether a message is a call, and has arguments
        self._rest = ""  # what is neither thinking nor a call, if one must be made
        self._called = False  # whether a mark of calls was there
        thinking = dialect.thinking
        always = thinking is not None and thinking.always
        self.thinks = self._opened = opened or always
        self._steps = self._channels() if dialect.channels else self._answer()
        self._over = False

    def passes(self, text: str) -> Kind | None:
        """Return the kind of a piece that is a part as it stands, as most are, or None.

        Such a piece changes nothing of the reader, and `push` would return that part.
        """
        passing, (take, kind) = self._source.passing, self._prose_now
        if passing is None or passing[1] is not take or self._spaces or self._skips:
            return None
        whole = text and not text[-1].isspace() and passing[0].search(text) is None
        return kind if whole else None

    def push(self, text: str, *, last: bool = False, cut: bool = False) -> list[Part]:
        """Return the parts that have become certain.

        `last` says that the text ends here, and `cut` that it had no more tokens.
        """
        source = self._source
        passing = source.passing
        if passing is not None and not last and passing[0].search(text) is None:
            passing[1](text)  # as most pieces: the steps below come to the same
            found, self._found = self._found, []
            return found
        source.drop()
        source.add(text)
        source.ended, source.cut = last, cut
        if not self._over:
            try:
                next(self._steps)
            except StopIteration:
                self._over = True
        if last:
            self._end()
        found, self._found = self._found, []
        return found

    def _end(self) -> None:
        spaces, self._spaces = self._spaces, ""
        if spaces and not self._obliged:
            self._put("text", spaces)
        if self._obliged and not self.calls and (self._rest.strip() or self._called):
            name = self._guess()
            if name is not None:
                self._begin(name, "")

    def _guess(self) -> str | None:
        """Return the one tool that can have been meant where a call was cut within its name."""
        found = _NAME.search(self._rest)
        word = _WORD.search(self._rest[-_LONGEST_HEADER:]) if self._called else None
        start, ended = (found[1], found[2]) if found else (word[0] if word else "", "")
        spelled = {name: escaped(name) for name in self._obliged}
        if not found and not any(each.startswith(start) for each in spelled.values()):
            start = ""
        fitting = [
            name
            for name, each in spelled.items()
            if (each == start if ended else each.startswith(start))
        ]
        return fitting[0] if len(fitting) == 1 else None

    def _put(self, kind: Kind, text: str, call: int = 0, ident: str = "") -> None:
        """Add a part, or to the last one if it goes on."""
        if call and not self._several:
            return
        if kind != "call" and self._found:
            before = self._found[-1]
            if before.kind == kind and before.call == call:
                self._found[-1] = before._replace(text=before.text + text)
                return
        if text or kind == "call":
            self._found.append(Part(kind, text, call, ident))

    def _prose(self, kind: Kind) -> Callable[[str], None]:
        """Return what takes text of a kind, and holds the white space at its end."""

        def take(text: str) -> None:
            if self._obliged and kind == "text":
                self._rest += text
                return
            if self._skips:
                text = text.lstrip()
                self._skips = not text
            text = self._spaces + text
            kept = text.rstrip()
            self._spaces = text[len(kept) :]
            if kept:
                self._put(kind, kept)

        if kind != "text" or not self._obliged:
            self._prose_now = take, kind
        return take

    def _marked(self) -> None:
        """Drop the white space around a mark."""
        self._spaces, self._skips = "", True

    def _answer(self) -> Generator[None, None, None]:
        """Read an answer whose thinking and calls stand between marks."""
        dialect = self._dialect
        calls = dialect.calls if self._tools is not None else None
        thinking = dialect.thinking
        around = () if calls is None else calls.marks
        ends = () if thinking is None else (thinking.open, thinking.close)
        known = (*ends, *around, *dialect.dropped)
        signs = (sign for mark in known for sign in mark if sign in _SIGNS)
        marks = marks_of(*known, *signs)
        if self._opened and thinking is not None:
            yield from self._think(marks)
        if calls is not None and calls.bare:
            yield from self._bare()
        while True:
            mark = yield from self._source.until(marks, self._prose("text"))
            if mark is None:
                return
            self._called |= mark in around
            if thinking is not None and mark == thinking.open:
                self._marked()
                yield from self._think(marks)
                if calls is not None and calls.bare:
                    yield from self._bare()
            elif calls is None or mark != calls.begin or (yield from self._call()):
                continue
            elif mark[0].isalpha():  # the mark is words, and here they are no more than that
                self._prose("text")("".join(each for each in mark if each not in _SIGNS))

    def _think(self, marks: Marks) -> Generator[None, None, None]:
        """Read thinking, which a call ends as well: not every model closes it."""
        thinking, calls = self._dialect.thinking, self._dialect.calls
        assert thinking is not None
        self._skips = self.thinks = True
        while True:
            mark = yield from self._source.until(marks, self._prose("thinking"))
            spaces = self._spaces
            self._marked()
            if mark is None or mark == thinking.close or mark in self._dialect.dropped:
                break
            calls_here = calls is not None and mark == calls.begin and not self._held
            if calls_here and (yield from self._call()):
                break
            self._spaces, self._skips = spaces, False
        self.thinks = False

    def _bare(self) -> Generator[None, None, None]:
        """Read calls without a mark, which a text that begins like one has."""
        calls = self._dialect.calls
        assert calls is not None
        while True:
            self._source.hold()
            first = yield from self._source.spaces()
            if self.calls and calls.between and first == calls.between:
                self._source.at += 1
                first = yield from self._source.spaces()
            if not first or first not in calls.form.first or not (yield from self._call()):
                self._source.release(back=True)
                return
            self._source.release()

    def _call(self) -> Generator[None, None, bool]:
        """Read a call, or several that stand together; return whether there was one.

        If there was none, reading goes on where it has begun.
        """
        calls = self._dialect.calls
        assert calls is not None
        if self._source.tired:
            return False
        self._source.hold()
        sink = _Sink(self, calls.end)
        yield from calls.form.read(self._source, sink)
        self._source.release(back=not sink.begun)
        if sink.begun:
            self._marked()
        return sink.begun

    def _begin(self, name: str, ident: str) -> None:
        self._source.settle()
        self.broken = True
        self._spaces = ""
        self._put("call", name, self.calls, ident)
        self.calls += 1

    def _channels(self) -> Generator[None, None, None]:
        """Read messages with channels; the prompt has begun the first one's header."""
        start, channel, message, *_, constrain = self._dialect.channels
        marks = marks_of(*self._dialect.channels)
        mark: str | None = start
        while mark is not None:
            if mark not in (start, channel):
                mark = yield from self._source.until(marks, self._body("final", ""))
                continue
            texts = {start: "", channel: "", constrain: ""}
            while mark in texts:
                if mark == start and not any(texts.values()) and not (yield from self._heads()):
                    break
                parts: list[str] = []
                before, mark = mark, (yield from self._source.until(marks, parts.append))
                texts[before] += "".join(parts)
            if mark == message and _is_header(*texts.values()):
                mark = yield from self._message(marks, texts[start], texts[channel])
            elif mark == start:
                mark = yield from self._source.until(marks, self._body("final", ""))
            else:  # it is no header
                self._body("final", "")("".join(texts.values()))

    def _heads(self) -> Generator[None, None, bool]:
        """Whether the text goes on as a header does."""
        source = self._source
        while True:
            ahead = source.text[source.at :]
            sign = next((at for at, each in enumerate(ahead) if each in _SIGNS or each == "<"), -1)
            head = ahead if sign < 0 else ahead[:sign]
            if len(head) > _LONGEST_HEADER or not _may_be_header(head):
                return False
            if sign >= 0 or source.ended:
                return sign >= 0 or not head.strip()
            yield

    def _message(self, marks: Marks, role: str, named: str) -> Generator[None, None, str | None]:
        """Read a message's body; return the mark that ends it."""
        words = named.split()
        to = _TO.search(named) or _TO.search(role)
        before, self._filled = self.calls, False
        body = self._body(words[0] if words else "final", to[1] if to else "")
        mark = yield from self._source.until(marks, body)
        if self._coming:
            self._begin(self._coming, "")
            self._coming = ""
        if self.calls > before:
            self.broken = mark is None and self._source.cut
            if not self.broken and not self._filled:
                self._put("arguments", "{}", self.calls - 1)
        return mark

    def _body(self, channel: str, to: str) -> Callable[[str], None]:
        """Return what takes a message's text."""
        name = to.removeprefix("functions.")
        if self._tools is not None and name in self._tools:
            self._coming = name
            return self._arguments
        if to and self._tools is not None:
            self._put("thinking", f"{to} ")
        kind: Kind = "thinking" if channel == "analysis" or to else "text"
        self.thinks = kind == "thinking"
        if self._obliged and kind == "text":
            return lambda text: None

        def take(text: str) -> None:
            self._put(kind, text)

        self._prose_now = take, kind
        return take

    def _arguments(self, text: str) -> None:
        """Take a part of a message to a tool; one that is no JSON object is no call."""
        if self._coming:
            text = self._spaces + text
            if not text.strip():
                self._spaces = text
                return
            name, self._coming, self._spaces = self._coming, "", ""
            self._calls_now = text.lstrip().startswith("{")
            if self._calls_now:
                self._begin(name, "")
        if not self._calls_now:
            self._put("thinking", text)
            return
        self._filled = True
        self._put("arguments", text, self.calls - 1)


def _may_be_header(text: str) -> bool:
    """Whether a header may begin like this: a role, and whom the message is for."""
    text = text.strip()
    rest = text.removeprefix("assistant").lstrip()
    to = rest.startswith("to=") and not any(map(str.isspace, rest))
    return "assistant".startswith(text) or "to=".startswith(rest) or to


def _is_header(*parts: str) -> bool:
    """Whether the texts of a header say a role, a channel, whom it is for and what it holds."""
    if sum(map(len, parts)) > _LONGEST_HEADER:
        return False
    return _HEAD.fullmatch(" ".join(" ".join(parts).split())) is not None


class _Sink:
    """Takes the calls of a reader."""

    def __init__(self, reader: Reader, end: str) -> None:
        self._reader = reader
        self.end = end
        self.tools: Mapping[str, Any] = reader._tools or {}
        self.names = frozenset(self.tools)
        self.stops = _SIGNS
        self.begun = False

    def begin(self, name: str, ident: str = "") -> None:
        self.begun = True
        self._reader._begin(name, ident)

    def add(self, arguments: str) -> None:
        self._reader._put("arguments", arguments, self._reader.calls - 1)

    def finish(self) -> None:
        self._reader.broken = False
