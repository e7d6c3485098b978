"""One sample of an answer: its text, its thinking and its calls, as they come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from suffice.dialects.reader import Kind, Part, Reader
from suffice.engine.work import Delta
from suffice.serve.http.chance import drawn
from suffice.serve.http.stream import reasoning
from suffice.serve.interfaces import logprobs

Call = dict[str, Any]


@dataclass
class Sample:
    """What a sample has given so far."""

    reader: Reader | None
    hidden: bool = False  # whether thinking is left out
    marks: tuple[int, int] | None = None  # the tokens around thinking
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    entries: list[logprobs.Entry] = field(default_factory=list)
    new_tokens: Sequence[int] = ()  # of the last delta
    new_entries: Sequence[logprobs.Entry] = ()
    characters: int = 0
    thinking_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def reason(self) -> str | None:
        """Why it has ended, in OpenAI's words: a call that a stop has cut is none to make."""
        called = self.calls and self.reader is not None and not self.reader.broken
        return "tool_calls" if called and self.finish_reason == "stop" else self.finish_reason

    @property
    def end(self) -> tuple[str | None, int | str | None]:
        """Why it has ended, and by which stop."""
        return self.reason, self.stop_reason

    def passes(self, delta: Delta) -> Kind | None:
        """Count a delta whose text is a part as it stands, and return its kind; else None.

        This is the way of most tokens of a stream, whose text nobody asks for later.
        """
        kind = None if self.reader is None else self.reader.passes(delta.text)
        if kind is None or (self.marks and not set(self.marks).isdisjoint(delta.tokens)):
            return None
        if kind == "thinking":
            if self.hidden:
                return None
            self.thinking_tokens += len(delta.tokens)
        return kind

    def take(self, delta: Delta) -> list[Part]:
        """Add a delta; return its parts. A call without an id gets one."""
        end = delta.finish_reason
        if end is not None:
            self.finish_reason, self.stop_reason = end, delta.stop_reason
        if self.reader is None:
            self._add(delta, ())
            self.texts.append(delta.text)
            return [Part("text", delta.text)] if delta.text else []
        thought = self.reader.thinks
        cut = end == "length" or isinstance(delta.stop_reason, str)  # by a text of the request's
        parts = self.reader.push(delta.text, last=end is not None, cut=cut)
        thoughts = self._count(delta, parts, thought)
        self._add(delta, thoughts if self.hidden else ())
        return [
            self._added(part) for part in parts if not (self.hidden and part.kind == "thinking")
        ]

    def _add(self, delta: Delta, hidden: Sequence[bool]) -> None:
        """Add the tokens of a delta and their log probabilities, but those that are `hidden`."""
        self.new_tokens, self.new_entries = delta.tokens, delta.logprobs or ()
        if any(hidden):
            shown = [not each for each in hidden]
            self.new_tokens = tuple(compress(self.new_tokens, shown))
            self.new_entries = tuple(compress(self.new_entries, shown))
        self.tokens += self.new_tokens
        self.entries += self.new_entries

    def _count(self, delta: Delta, parts: Sequence[Part], thought: bool) -> list[bool]:
        """Count the tokens of thinking, its marks included, and return which these are.

        `thought` says that it went on before these. Where marks are no tokens, what comes with a
        mark counts by its share of the letters, and nothing is returned.
        """
        if self.marks is None:
            letters = sum(len(part.text) for part in parts if part.kind == "thinking")
            whole = thought and self.reader is not None and self.reader.thinks
            share = 1.0 if whole else min(1.0, letters / max(1, len(delta.text)))
            self.thinking_tokens += math.ceil(share * len(delta.tokens))
            return []
        opening, closing = self.marks
        found = []
        for token in delta.tokens:
            thought |= token == opening
            found.append(thought)
            thought &= token != closing
        self.thinking_tokens += sum(found)
        return found

    def _added(self, part: Part) -> Part:
        if part.kind == "text":
            self.texts.append(part.text)
        elif part.kind == "thinking":
            self.thoughts.append(part.text)
        elif part.kind == "call":
            part = part._replace(ident=part.ident or f"call_{drawn(12).hex()}")
            function = {"name": part.text, "arguments": ""}
            self.calls.append({"id": part.ident, "type": "function", "function": function})
        else:
            self.calls[part.call]["function"]["arguments"] += part.text
        return part

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a chat's message."""
        text = "".join(self.texts)
        found: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self.thoughts:
            found |= reasoning("".join(self.thoughts))
        if self.calls:
            found |= {"content": text.strip() or None, "tool_calls": self.calls}
        return found
