"""The grammar of calls that must be made, in llguidance's form of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from suffice.dialects.dialect import FIRST_SIGN, MOST_SIGNS, Calls, Dialect
from suffice.dialects.json_forms import Either, Json, Named
from suffice.dialects.other_forms import Braced, Pythonic, Tagged
from suffice.dialects.schemas import kinds_of, properties_of

_ANY = {"type": "object"}


class CallGrammar:
    """Writes the grammar of calls of some tools."""

    def __init__(
        self, dialect: Dialect, token_ids: Sequence[int], options: Mapping[str, Any]
    ) -> None:
        """Prepare; `dialect` is spelled, and `token_ids` are those of its signs.

        `options` are of llguidance for JSON.
        """
        self._dialect, self._token_ids, self._options = dialect, token_ids, options
        self._rules: list[str] = []

    def text(self, tools: Mapping[str, Any], *, several: bool) -> str:
        """Return the grammar; `tools` are the schemas of parameters by name."""
        if self._dialect.channels:
            return self._in_channels(tools)
        calls = self._dialect.calls
        assert calls is not None
        ones = " | ".join(self._call(calls, name, schema) for name, schema in tools.items())
        self._rules.append(f"one: {ones}")
        begin, end = (self._literal(mark) for mark in calls.section)
        whole = self._all(calls, several=several)
        return "\n".join([f"start: {begin} {whole} {end}", *self._rules])

    def _all(self, calls: Calls, *, several: bool) -> str:
        """Return all calls between the marks of the section."""
        begin, end = self._literal("" if calls.bare else calls.begin), self._literal(calls.end)
        if isinstance(calls.form, Pythonic) or _lists(calls.form):
            more = '(", " one)*' if several else ""
            return f'{begin} "[" one {more} "]" {end}'
        lines = isinstance(calls.form, Json) and not calls.bare
        space = '"\\n"' if lines else ""
        call = f"{begin} {space} one {space} {end}"
        if not several:
            return call
        between = self._literal(calls.between) or ("" if calls.bare else '"\\n"?')
        return f"{call} ({between} {call})*"

    def _call(self, calls: Calls, name: str, schema: Any) -> str:
        """Return a rule of one call between its marks."""
        form, schema = calls.form, schema if isinstance(schema, dict) else _ANY
        rule = f"call{len(self._rules)}"
        self._rules.append("")
        place = len(self._rules) - 1
        if isinstance(form, Either):
            form = form.preferred
        if isinstance(form, Json):
            properties = {form.name: {"const": name}, form.arguments[0]: schema}
            body = self._json(
                {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                    "additionalProperties": False,
                }
            )
        elif isinstance(form, Named):
            shown = f"functions.{name}:0" if form.ident else name
            body = f"{_quoted(shown)} {self._literal(form.separator)} {self._json(schema)}"
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

    def final(self, grammar: str) -> str:
        """Return llguidance's grammar of a message whose last channel's text obeys another one."""
        _, channel, message, *_ = map(self._literal, self._dialect.channels)
        start = f'start: {self._analysis()} {channel} "final" {message} @answer'
        outer = {"lark_grammar": "\n".join([start, *self._rules])}
        inner = json.loads(grammar)
        first, *others = inner["grammars"]
        return json.dumps({**inner, "grammars": [outer, {**first, "name": "answer"}, *others]})

    def _analysis(self) -> str:
        """Return an analysis that may precede another message."""
        start, channel, message, end, *_ = map(self._literal, self._dialect.channels)
        self._rules.append("prose: /(?s:.*)/")
        return f'({channel} "analysis" {message} prose {end} {start} "assistant")?'

    def _in_channels(self, tools: Mapping[str, Any]) -> str:
        """Return the grammar of a message to a tool, which an analysis may precede."""
        _, channel, message, *_, constrain = map(self._literal, self._dialect.channels)
        analysis = self._analysis()
        ones = []
        for name, schema in tools.items():
            head = f'{channel} {_quoted(f"commentary to=functions.{name} ")} {constrain} "json"'
            ones.append(f"{head} {message} {self._json(schema or _ANY)}")
        return "\n".join([f"start: {analysis} ({' | '.join(ones)})", *self._rules])

    def _tagged(self, form: Tagged, name: str, schema: Any) -> str:
        line = '"\\n"' if form.lines else ""
        body = f"{_quoted(name)} {self._literal(form.name_end)} {line}"
        if not form.lines:
            body = f'{_quoted(name)} "\\n"'
        required = schema.get("required") or ()
        for key, each in _known(schema):
            text = not kinds_of(each) or kinds_of(each) == {"string"}
            close = f"\n{form.close}" if form.lines else form.close
            value = (
                self._free(close, each) if text else f"{self._json(each)} {self._literal(close)}"
            )
            opening = f"{self._literal(form.key)} {_quoted(key)} {self._literal(form.key_end)}"
            if form.value:
                opening += f' "\\n" {self._literal(form.value)}'
            part = f'{opening} {line} {value} "\\n"'
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
        return '("True" | "False")' if kinds_of(schema) == {"boolean"} else self._json(schema)

    def _braced(self, form: Braced, schema: Any) -> str:
        if kinds_of(schema) == {"string"}:
            return f"{self._literal(form.quote)} {self._free(form.quote, schema)}"
        return self._json(schema)

    def _free(self, close: str, schema: Any) -> str:
        """Return any text up to a mark, and the mark; one of a choice if the schema has one."""
        values = schema.get("enum") if isinstance(schema, dict) else None
        if values and all(isinstance(each, str) for each in values):
            return f"({' | '.join(map(_quoted, values))}) {self._literal(close)}"
        rule = f"text{len(self._rules)}"
        if any(_is_sign(each) for each in close):
            self._rules.append(f"{rule}: /(?s:.*)/")
            return f"{rule} {self._literal(close)}"
        self._rules.append(f"{rule}[suffix={_quoted(close)}]: /(?s:.*)/")
        return rule

    def _json(self, schema: Any) -> str:
        rule = f"json{len(self._rules)}"
        own = schema if isinstance(schema, dict) else {}
        self._rules.append(f"{rule}: %json {json.dumps({'x-guidance': self._options, **own})}")
        return rule

    def _literal(self, mark: str) -> str:
        """Return a mark in Lark: tokens by their numbers."""
        parts = re.split(f"([{chr(FIRST_SIGN)}-{chr(FIRST_SIGN + MOST_SIGNS - 1)}])", mark)
        return " ".join(
            f"<[{self._token_ids[ord(part) - FIRST_SIGN]}]>" if _is_sign(part) else _quoted(part)
            for part in parts
            if part
        )


def _is_sign(text: str) -> bool:
    return len(text) == 1 and FIRST_SIGN <= ord(text) < FIRST_SIGN + MOST_SIGNS


def _lists(form: Any) -> bool:
    """Whether calls are written as one list."""
    form = form.preferred if isinstance(form, Either) else form
    return isinstance(form, Json) and form.listed


def _known(schema: Any) -> list[tuple[str, Any]]:
    return list(properties_of(schema).items())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
