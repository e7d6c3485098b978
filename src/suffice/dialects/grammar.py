"""The grammar of an answer whose calls or text are held to something, in llguidance's Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suffice.dialects.dialect import FIRST_SIGN, MOST_SIGNS, Calls, Dialect
from suffice.dialects.json_forms import Either, Json, Named
from suffice.dialects.other_forms import Braced, Pythonic, Tagged
from suffice.dialects.schemas import NAMED, kinds_of, properties_of

_ANY = {"type": "object"}
_OF_TEXTS = {"anyOf", "const", "enum", "format", "maxLength", "minLength", "oneOf", "pattern"}
_LINE, _GAP = '"\\n"', "/[ \\n]{1,6}/?"


@dataclass(frozen=True)
class Held:
    """Tools that calls are held to.

    Attributes:
        schemas: Those of their parameters, by name.
        must: Whether one must be called; else any text may come, and calls in it.
        several: Whether more than one may be called.
        options: Of llguidance for JSON.
    """

    schemas: Mapping[str, Any]
    must: bool
    several: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


class AnswerGrammar:
    """Writes the grammar of one answer."""

    def __init__(
        self,
        dialect: Dialect,
        token_ids: Sequence[int],
        whole: Iterable[int] = (),
        *,
        opened: bool = False,
    ) -> None:
        """Prepare; `dialect` is spelled, and `token_ids` are those of its signs.

        `whole` are the model's tokens that no text is made of. `opened` says that the prompt has
        begun the thinking.
        """
        self._dialect, self._token_ids, self._opened = dialect, token_ids, opened
        self._whole = sorted(set(whole))
        self._rules: list[str] = []
        self._options: Mapping[str, Any] = {}
        self._named: Mapping[str, Any] = {}  # parts of a tool's schema that others refer to

    def text(self, held: Held | None, form: str | None) -> str:
        """Return llguidance's grammar; `form` is that of the text of an answer that calls nothing.

        One of the two is given, and no form if a tool must be called.
        """
        calls, thought = self._dialect.calls, self._thought()
        self._options = {} if held is None else held.options
        if self._dialect.channels:
            start = self._in_channels(held, form)
        elif held is None or calls is None:
            assert form is not None
            if not thought:
                return form
            start = "@answer"
        else:
            ones = " | ".join(self._call(calls, *each) for each in held.schemas.items())
            self._rules.append(f"one: {ones}")
            if held.must or form is not None:
                start = self._all(calls, several=held.several)
            else:
                start = self._offered(calls, several=held.several)
            if form is not None:
                start = f"({start} | @answer)"
        outer = {"lark_grammar": "\n".join([f"start: {thought} {start}", *self._rules])}
        inner = {"grammars": []} if form is None else _loaded(form)
        own = [{**each, "name": "answer"} for each in inner["grammars"][:1]]
        return json.dumps({**inner, "grammars": [outer, *own, *inner["grammars"][1:]]})

    def _thought(self) -> str:
        """Return what precedes an answer if text ends the thinking: a token is no affair of this.

        The text may end within a token, whose rest is of the answer.
        """
        thinking = self._dialect.thinking
        if thinking is None or any(map(_is_sign, thinking.close)):
            return ""
        self._rules.append(f"thought[lazy]: /(?s:.*)/ {_quoted(thinking.close)}")
        whole = "thought /[ \\t\\r\\n]+/?"
        return whole if self._opened else f"({self._literal(thinking.open)} {whole})?"

    def _all(self, calls: Calls, *, several: bool) -> str:
        """Return calls alone, between the marks of their section."""
        begin, end = (self._literal(mark) for mark in calls.section)
        whole = f"{begin} {self._between(calls, several=several)} {end}"
        return f"{whole} ({_LINE}? {whole})*" if several and begin else whole

    def _between(self, calls: Calls, *, several: bool) -> str:
        """Return what stands between the marks of a section: calls with their own marks."""
        line = f"{_LINE}?" if isinstance(calls.form, Tagged) and calls.section[0] else ""
        return f"{line} {self._calls(calls, several=several)} {line}"

    def _calls(self, calls: Calls, *, several: bool) -> str:
        """Return calls with their own marks."""
        begin = self._literal("" if calls.bare else calls.begin)
        call = f"{begin} {self._inner(calls, several=several)}"
        if not several or _lists(calls.form):
            return call
        between = f'{self._literal(calls.between)} " "?' if calls.between else f"{_LINE}?"
        return f"{call} ({between} {call})*"

    def _inner(self, calls: Calls, *, several: bool) -> str:
        """Return what follows the mark that begins a call, or a list of them."""
        end = self._literal(calls.end)
        if _lists(calls.form):
            more = f'({_GAP} "," {_GAP} one)*' if several else ""
            return f'"[" {_GAP} one {more} {_GAP} "]" {_GAP} {end}'
        space = _LINE if isinstance(calls.form, Json) and not calls.bare else ""
        return f"{space} one {space} {end}"

    def _offered(self, calls: Calls, *, several: bool) -> str:
        """Return any text with calls in it; what begins with a mark of theirs is a call."""
        marks = [mark for mark in (calls.section[0], calls.begin) if mark]
        signs = [next(filter(_is_sign, mark)) for mark in marks if any(map(_is_sign, mark))]
        tokens = {self._token_ids[ord(sign) - FIRST_SIGN] for sign in signs}
        first = "".join(map(re.escape, calls.form.first)) if calls.bare else ""
        before = rf"[ \t\r\n]*([^ \t\r\n{first}](?s:.*))?" if first else "(?s:.*)"
        if all(_is_sign(mark[0]) for mark in marks) and not first:
            free = f"<[^{_listed(tokens)}]>"
        else:
            others = _listed(token for token in self._whole if token not in tokens)
            self._rules.append(f"TEXT: /{before}/")
            free = f"(TEXT | <[{others}]>)" if others else "TEXT"
        call = f"{self._begun(calls.begin, before)} {self._inner(calls, several=several)}"
        if calls.section[0]:
            begin, end = self._begun(calls.section[0], before), self._literal(calls.section[1])
            call = f"({begin} {self._between(calls, several=several)} {end} | {call})"
        bare = f"({self._calls(calls, several=several)})" if calls.bare else ""
        if several:
            return f"{bare and f'{bare}?'} ({free} | {call})*"
        return f"({bare and f'{bare} | '}{free}* ({call})?)"

    def _begun(self, mark: str, before: str) -> str:
        """Return a mark; one that is text with the text before it, which ends at the first."""
        size = next((at for at, each in enumerate(mark) if _is_sign(each)), len(mark))
        if not size:
            return self._literal(mark)
        # A name in capitals is one lexeme, which a token ends; a lazy one ends itself.
        rule = f"HEAD{len(self._rules)}" if size < len(mark) else f"head{len(self._rules)}[lazy]"
        self._rules.append(f"{rule}: /{before}/ {_quoted(mark[:size])}")
        return f"{rule.partition('[')[0]} {self._literal(mark[size:])}"

    def _call(self, calls: Calls, name: str, schema: Any) -> str:
        """Return a rule of one call between its marks."""
        form, schema = calls.form, schema if isinstance(schema, dict) else _ANY
        self._named = {name: schema[name] for name in NAMED if name in schema}
        rule = f"call{len(self._rules)}"
        self._rules.append("")
        place = len(self._rules) - 1
        if isinstance(form, Either):
            form = form.preferred
        if isinstance(form, Json):
            needed = {form.name: {"const": name}, form.arguments[0]: schema}
            ident = {form.ident: {"type": "string", "maxLength": 8}} if form.ident else {}
            body = self._json(
                {
                    "type": "object",
                    "properties": {**ident, **needed},
                    "required": list(needed),
                    "additionalProperties": False,
                }
            )
        elif isinstance(form, Named):
            shown = f"{_quoted(f'functions.{name}:')} /[0-9]{{1,3}}/" if form.ident else ""
            body = f"{shown or _quoted(name)} {self._literal(form.separator)} {self._json(schema)}"
            body += f" {self._literal(form.after)}"
        elif isinstance(form, Tagged):
            body = self._tagged(form, name, schema)
        elif isinstance(form, Pythonic):
            given = [(_quoted(f"{key}="), self._python(each)) for key, each in _known(schema)]
            body = f'{_quoted(f"{name}(")} {self._separated(given, schema)} ")"'
        else:
            assert isinstance(form, Braced)
            given = [(_quoted(f"{key}:"), self._braced(form, each)) for key, each in _known(schema)]
            start = _quoted(f"{form.before}{name}{{")
            body = f'{start} {self._separated(given, schema, ",")} "}}"'
        self._rules[place] = f"{rule}: {body}"
        return rule

    def _in_channels(self, held: Held | None, form: str | None) -> str:
        """Return messages: an analysis may come first, the last is to a tool or to the user."""
        start, channel, message, end, *_, constrain = map(self._literal, self._dialect.channels)
        self._rules.append("prose: /(?s:.*)/")
        free = form is None and held is not None and not held.must
        names = '("analysis" | "commentary")' if free else '"analysis"'
        before = f'({channel} {names} {message} prose {end} {start} "assistant")'
        lasts = []
        for name, schema in () if held is None else held.schemas.items():
            head = f'{channel} {_quoted(f"commentary to=functions.{name} ")} {constrain} "json"'
            lasts.append(f"{head} {message} {self._json(schema or _ANY)}")
        if form is not None or free:
            lasts.append(f'{channel} "final" {message} {"prose" if form is None else "@answer"}')
        return f"{before}{'*' if free else '?'} ({' | '.join(lasts)})"

    def _tagged(self, form: Tagged, name: str, schema: Any) -> str:
        """Return a call with tags; not every model breaks its lines where others do."""
        line = f"{_LINE}?"
        body = f"{_quoted(name)} {self._literal(form.name_end.strip())} {line} {line}"
        required, close = schema.get("required") or (), self._literal(form.close)
        for key, each in _known(schema):
            text = not kinds_of(each) or kinds_of(each) == {"string"}
            value = self._free(form.close, each) if text else f"{self._json(each)} {line} {close}"
            ends = self._literal(form.key_end), self._literal(form.said[0 if text else 1])
            opening = f"{self._literal(form.key)} {_quoted(key)} {' '.join(ends)}"
            if form.value:
                opening += f" {line} {self._literal(form.value)}"
            part = f"{opening} {line} {value} {line}"
            body += f" {part}" if key in required else f" ({part})?"
        return body

    def _separated(self, given: list[tuple[str, str]], schema: Any, comma: str = ", ") -> str:
        """Return arguments in their order with commas between; some may be missing."""
        required = schema.get("required") or ()
        named = list(zip((key for key, _ in _known(schema)), given, strict=True))
        needed = [f"{key} {value}" for name, (key, value) in named if name in required]
        others = [f"{key} {value}" for name, (key, value) in named if name not in required]
        first = f" {_quoted(comma)} ".join(needed)
        if needed:
            return first + "".join(f" ({_quoted(comma)} {each})?" for each in others)
        chains = [
            each + "".join(f" ({_quoted(comma)} {other})?" for other in others[at + 1 :])
            for at, each in enumerate(others)
        ]
        return f"({' | '.join(chains)})?" if chains else ""

    def _python(self, schema: Any) -> str:
        if kinds_of(schema) == {"boolean"}:
            return '("True" | "False")'
        if kinds_of(schema) == {"string"} and not set(schema) & _OF_TEXTS:
            return f"({self._json(schema)} | /'([^'\\\\\\n]|\\\\['\\\\nt])*'/)"
        return self._json(schema)

    def _braced(self, form: Braced, schema: Any) -> str:
        if kinds_of(schema) == {"string"}:
            return f"{self._literal(form.quote)} {self._free(form.quote, schema)}"
        return self._json(schema)

    def _free(self, close: str, schema: Any) -> str:
        """Return any text up to a mark, and the mark; one of a choice if the schema has one."""
        values = schema.get("enum") if isinstance(schema, dict) else None
        if values and all(isinstance(each, str) for each in values):
            return f"({' | '.join(map(_quoted, values))}) {self._literal(close)}"
        return f"{'/(?s:.*)/' if _is_sign(close[0]) else ''} {self._begun(close, '(?s:.*)')}"

    def _json(self, schema: Any) -> str:
        rule = f"json{len(self._rules)}"
        own = schema if isinstance(schema, dict) else {}
        whole = {"x-guidance": self._options, **self._named, **own}
        self._rules.append(f"{rule}: %json {json.dumps(whole)}")
        return rule

    def _literal(self, mark: str) -> str:
        """Return a mark in Lark: tokens by their numbers."""
        parts = re.split(f"([{chr(FIRST_SIGN)}-{chr(FIRST_SIGN + MOST_SIGNS - 1)}])", mark)
        return " ".join(
            f"<[{self._token_ids[ord(part) - FIRST_SIGN]}]>" if _is_sign(part) else _quoted(part)
            for part in parts
            if part
        )


def _loaded(form: str) -> dict[str, Any]:
    """Return llguidance's grammar in JSON; it may be Lark alone."""
    found: dict[str, Any] = {"grammars": [{"lark_grammar": form}]}
    return json.loads(form) if form.startswith("{") else found


def _is_sign(text: str) -> bool:
    return len(text) == 1 and FIRST_SIGN <= ord(text) < FIRST_SIGN + MOST_SIGNS


def _lists(form: Any) -> bool:
    """Whether calls are written as one list."""
    form = form.preferred if isinstance(form, Either) else form
    return isinstance(form, Pythonic) or (isinstance(form, Json) and form.listed)


def _listed(tokens: Iterable[int]) -> str:
    return ",".join(map(str, sorted(tokens)))


def _known(schema: Any) -> list[tuple[str, Any]]:
    return list(properties_of(schema).items())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
