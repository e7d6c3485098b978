"""Tool calls: what models write for them, and the grammar of calls that must be made.

Two forms: `hermes` (also Qwen's), <tool_call>{"name": ..., "arguments": {...}}</tool_call>, and
`llama3`, {"name": ..., "parameters": {...}}. What cannot be parsed is content. A call is handed out
once it is whole, since a part of one cannot be taken back. One that `max_tokens` has cut is handed
out with the part of its arguments that there is, as OpenAI does it; so is one that must be made and
that a stop has cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from suffice.engine.structured import SPACES
from suffice.errors import brief, unknown
from suffice.serve.errors import Problem
from suffice.serve.http.chance import drawn

PARSERS = ("hermes", "llama3")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON = "<|python_tag|>"
_MOST_TOOLS = 128
_CUT = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(\{.*)?',
    re.DOTALL,
)
_NAME = re.compile(
    r'\s*(?:<tool_call>|<\|python_tag\|>)?\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)("?)', re.DOTALL
)
Call = dict[str, Any]


class Reader(Protocol):
    """Finds the tool calls in one sample's text, as it comes.

    `calls` are those found so far, in OpenAI's form; `broken` says that the last one was cut.
    """

    calls: list[Call]
    broken: bool

    def push(self, text: str, *, last: bool, cut: bool = False) -> tuple[str, list[Call]]:
        """Return what of the text so far is content, and new calls as they are streamed.

        `last` says that the text ends here, and `cut` that it had no more tokens.
        """
        ...


class Hermes:
    """Calls between tags, anywhere in the text."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.broken = False
        self._held = ""

    def push(self, text: str, *, last: bool, cut: bool = False) -> tuple[str, list[Call]]:
        """See `Reader`."""
        self._held += text
        content, new = "", []
        while True:
            at = self._held.find(_OPEN)
            if at < 0:
                keep = 0 if last else _partial(self._held, _OPEN)
                size = len(self._held) - keep
                content, self._held = content + self._held[:size], self._held[size:]
                break
            end = self._held.find(_CLOSE, at)
            if end < 0 and not last:
                content, self._held = content + self._held[:at], self._held[at:]
                break
            inner = self._held[at + len(_OPEN) : end if end >= 0 else None]
            rest = self._held[end + len(_CLOSE) :] if end >= 0 else ""
            found = parsed(inner, "arguments")
            if found is None and cut and end < 0:
                found = begun(inner)
                self.broken = found is not None
            if found is None:
                content += self._held[: len(self._held) - len(rest)]
            else:
                content += self._held[:at].rstrip()
                rest = rest.lstrip()
                new += _added(self.calls, [found])
            self._held = rest
        return content, new


class Llama3:
    """Calls that are the whole text, several of them separated by semicolons."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.broken = False
        self._held = ""
        self._plain = False

    def push(self, text: str, *, last: bool, cut: bool = False) -> tuple[str, list[Call]]:
        """See `Reader`."""
        if self._plain:
            return text, []
        self._held += text
        start = self._held.lstrip()
        begins = start.startswith("{") or _PYTHON.startswith(start[: len(_PYTHON)])
        if not last and begins:
            return "", []
        held, self._held = self._held, ""
        found, self.broken = _listed(start.removeprefix(_PYTHON), cut) if begins else (None, False)
        if not found:
            self._plain = True
            return held, []
        return "", _added(self.calls, found)


class Required:
    """Calls that a grammar makes sure of: nothing of the text is content, however it ends.

    A call that is cut within its name is handed out if the name can only be one of `names`.
    """

    def __init__(self, reader: Reader, names: Sequence[str]) -> None:
        self.calls, self.broken = reader.calls, False
        self._reader, self._names = reader, names
        self._rest = ""

    def push(self, text: str, *, last: bool, cut: bool = False) -> tuple[str, list[Call]]:
        """See `Reader`."""
        rest, new = self._reader.push(text, last=last, cut=last)
        self.broken = self._reader.broken
        self._rest += rest
        if last and self._rest.strip():
            found = _NAME.match(self._rest)
            start, ended = (found[1], found[2]) if found else ("", "")
            spelled = {name: json.dumps(name, ensure_ascii=False)[1:-1] for name in self._names}
            fitting = [
                name
                for name, each in spelled.items()
                if (each == start if ended else each.startswith(start))
            ]
            if len(fitting) == 1:
                new += _added(self.calls, [(fitting[0], "")])
                self.broken = True
        return "", new


def _listed(text: str, cut: bool) -> tuple[list[tuple[str, str]] | None, bool]:
    """Return the calls of a text that holds nothing else, and whether the last one is cut."""
    decoder, at = json.JSONDecoder(), 0
    found: list[tuple[str, str]] = []
    while at < len(text):
        if text[at] in " \n\t;":
            at += 1
            continue
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            last = begun(text[at:]) if cut else None
            return (None, False) if last is None else ([*found, last], True)
        call = parsed(text[at:end], "parameters")
        if call is None:
            return None, False
        found.append(call)
        at = end
    return found, False


def parsed(text: str, field: str) -> tuple[str, str] | None:
    """Return a call's name and its arguments as JSON; None if the text is no call."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get(field, found.get("arguments", {}))
    if isinstance(arguments, str):
        return found["name"], arguments
    if not isinstance(arguments, dict):
        return None
    return found["name"], json.dumps(arguments, ensure_ascii=False)


def begun(text: str) -> tuple[str, str] | None:
    """Return the name of a call that was cut, and the part of its arguments that there is."""
    found = _CUT.fullmatch(text)
    if found is None:
        return None
    name, rest = found.groups("")
    try:
        whole = json.JSONDecoder().raw_decode(rest)[1] if rest else 0
    except (ValueError, RecursionError):
        whole = len(rest)
    return json.loads(name, strict=False), rest[:whole]


def _added(calls: list[Call], found: Sequence[tuple[str, str]]) -> list[Call]:
    new = []
    for name, arguments in found:
        call = {
            "id": f"call_{drawn(12).hex()}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        new.append({"index": len(calls), **call})
        calls.append(call)
    return new


def _partial(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that begins a mark."""
    most = min(len(text), len(mark) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(mark[:n])), 0)


def parser_of(template: str | None, asked: str | None) -> str | None:
    """Return which form a chat template that takes tools teaches; None if it teaches none.

    Raises:
        InputError: An unknown form is asked for.
    """
    if asked not in (None, "auto"):
        if asked not in PARSERS:
            raise unknown("tool-call parser", str(asked), (*PARSERS, "auto"))
        return asked
    if template is None:
        return None
    return "hermes" if _OPEN in template else "llama3" if "parameters" in template else None


READERS: dict[str, Callable[[], Reader]] = {"hermes": Hermes, "llama3": Llama3}


class Tools:
    """A request's tools and how they may be used.

    Attributes:
        choice: "none", "auto", "required", or the name of the one to call.
    """

    def __init__(self, given: Sequence[dict[str, Any]], choice: Any, parallel: bool) -> None:
        """Check the fields of a request.

        Raises:
            Problem: They have another form.
        """
        self.given = list(given)
        self.parallel = parallel
        self._functions = {self._name(at, tool): tool["function"] for at, tool in enumerate(given)}
        if len(self.given) > _MOST_TOOLS:
            message = f"{len(self.given)} tools given; at most {_MOST_TOOLS} are allowed"
            raise Problem("invalid_value", message, param="tools")
        self.choice = self._choice(choice)

    @staticmethod
    def _name(at: int, tool: dict[str, Any]) -> str:
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            message = f"tools[{at}]: must be {{'type': 'function', 'function': {{'name': ...}}}}"
            raise Problem("invalid_value", message, param="tools")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise Problem("invalid_value", f"tools[{at}]: the function has no name", param="tools")
        return name

    def _choice(self, choice: Any) -> str:
        if choice is None:
            return "auto" if self.given else "none"
        if not self.given and (choice == "required" or isinstance(choice, dict)):
            own = "required" if choice == "required" else brief(choice)
            raise Problem("invalid_value", f"tool_choice={own} needs tools", param="tool_choice")
        if isinstance(choice, dict):
            function = choice.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str) and name in self._functions:
                return str(name)
        elif choice in ("none", "auto", "required"):
            return str(choice)
        message = "tool_choice: must be none, auto or required"
        if known := ", ".join(self._functions)[:200]:
            message += f", or {{'type': 'function', 'function': {{'name': ...}}}} of {known}"
        raise Problem("invalid_value", message, param="tool_choice")

    @property
    def used(self) -> bool:
        """Whether the model may call one."""
        return bool(self.given) and self.choice != "none"

    @property
    def _obliged(self) -> list[str]:
        """The tools that the model must choose from; none if it need not call any."""
        if self.choice in ("none", "auto"):
            return []
        return list(self._functions) if self.choice == "required" else [self.choice]

    def reader(self, parser: str) -> Callable[[], Reader]:
        """Return what makes the reader of a sample."""
        make, names = READERS[parser], self._obliged
        return (lambda: Required(make(), names)) if names else make

    def grammar(self, parser: str) -> str | None:
        """Return the grammar of answers that must call; None if they need not."""
        names = self._obliged
        if not names:
            return None
        from llguidance import LLMatcher

        field = "arguments" if parser == "hermes" else "parameters"
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    field: self._functions[name].get("parameters") or {"type": "object"},
                },
                "required": ["name", field],
                "additionalProperties": False,
            }
            for name in names
        ]
        own = {"anyOf": calls} if len(calls) > 1 else calls[0]
        schema = json.dumps({"x-guidance": SPACES, **own})
        several = self.parallel and self.choice == "required"
        if parser == "hermes":
            start = 'start: one ("\\n" one)*' if several else "start: one"
            tags = f'one: "{_OPEN}\\n" call "\\n{_CLOSE}"'
            lark = f"{start}\n{tags}\ncall: %json {schema}"
        else:
            start = 'start: call (";" call)*' if several else "start: call"
            lark = f"{start}\ncall: %json {schema}"
        found: str = LLMatcher.grammar_from_lark(lark)
        return found
