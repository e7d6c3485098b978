"""`suffice info SEAM` and `suffice info TECHNIQUE`: lists techniques, or a technique's options.

All text comes from the dataclass and its docstring, or its module's, whose sections are

    Source   the paper or program that it follows
    Differs  where it deviates from its source
    Exact    when it equals the exact result
    Native   the files that make it fast
    Example  a value of the seam's flag, where the first options alone make none
    Options
        name  a description, one for each field of the dataclass; a base class has its own
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.cache import GROWTHS
from suffice.errors import InputError
from suffice.experts import EXPERTS
from suffice.policy import POLICIES
from suffice.quant import QUANTS
from suffice.registry import Table
from suffice.speculate import SPECULATORS

_SECTION = re.compile(r"(\w+) {2,}(.*)|(Options)")
_OPTION = re.compile(r" {4}(\w+) {2,}(.*)")
_PAPER = re.compile(r'.*?"[^"]+"|.*?(?=[;(]|\. |, Eq|, section|$)')
_SUBTITLE = re.compile(r':[^"]*"')
_COLUMNS = 100


@dataclass(frozen=True)
class Seam:
    """A seam: its techniques, its flag, and its subject."""

    table: Table
    flag: str
    decides: str

    @property
    def name(self) -> str:
        """The seam's name: that of its flag."""
        return self.flag.removeprefix("--")


SEAMS = (
    Seam(ATTENTIONS, "--attention", "how attention is computed, and which rows it reads"),
    Seam(SOFTMAXES, "--softmax", "how scores become weights"),
    Seam(POLICIES, "--policy", "which cached tokens are kept, and which may be read"),
    Seam(EXPERTS, "--experts", "which of a token's experts are computed"),
    Seam(GROWTHS, "--growth", "how the cache grows"),
    Seam(QUANTS, "--quant", "how weights are stored"),
    Seam(SPECULATORS, "--speculate", "who drafts tokens that the model then checks"),
)


def show(words: list[str]) -> None:
    """Print a seam's techniques, or a technique's options; `words` are one name, or both.

    Raises:
        InputError: The name is unknown, or several seams have it.
    """
    found = _found(words)
    print(listed(found) if isinstance(found, Seam) else described(*found))


def _found(words: list[str]) -> Seam | tuple[Seam, str]:
    seams = {seam.name: seam for seam in SEAMS}
    first = words[0]
    if len(words) > 2:
        raise InputError(f"info {' '.join(words)}: give a seam, a technique, or a seam and one")
    if first in seams:
        if len(words) == 1:
            return seams[first]
        seams[first].table.load(words[1])  # refuses an unknown name
        return seams[first], words[1]
    if len(words) == 2:
        raise _unknown("seam", first, list(seams))
    having = _having(first)
    if len(having) == 1:
        return having[0], first
    if having:
        either = " or ".join(f"`suffice info {seam.name} {first}`" for seam in having)
        raise InputError(f"'{first}' is a technique of several seams: {either}")
    names = [*seams, *(name for seam in SEAMS for name in seam.table.names())]
    raise _unknown("seam or technique", first, names, list(seams))


def _having(name: str) -> list[Seam]:
    """Return the seams that have a technique of a name; of a `module:Class`, the first it fits.

    Raises:
        InputError: There is no such class, or it fits no seam.
    """
    having = [seam for seam in SEAMS if name in seam.table.entries]
    open_seams = [seam for seam in SEAMS if seam.table.outside is not None]
    if having or ":" not in name:
        return having or [seam for seam in open_seams if _registers(seam, name)]
    refused = []
    for seam in open_seams:
        try:
            seam.table.load(name)
        except InputError as error:
            refused.append(error)
        else:
            return [seam]
    raise refused[0]


def _registers(seam: Seam, name: str) -> bool:
    return seam.table.outside is not None and name in seam.table.outside.registered


def _unknown(
    kind: str, given: str, names: list[str], listed: list[str] | None = None
) -> InputError:
    near = get_close_matches(given, names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return InputError(f"unknown {kind} '{given}'.{hint} Seams: {', '.join(listed or names)}")


def listed(seam: Seam) -> str:
    """Return a seam's techniques, one line each: name, description, paper."""
    lines = [f"{seam.flag} NAME or NAME:OPTION=VALUE,...: {seam.decides}", ""]
    for name in seam.table.names():
        page = Page.of(seam, name)
        paper = f" [{page.paper}]" if page.paper else ""
        lines.append(f"{name:12} {page.sentence.rstrip('.')}{paper}")
    end = f"options of one: suffice info {seam.name} NAME"
    outside = seam.table.outside
    if outside is None:
        return "\n".join([*lines, "", end])
    for name, found in sorted(outside.registered.items()):
        if name not in seam.table.entries:
            lines.append(f"{name:12} {_of_package(seam, name)} [package {found.package}]")
    own = f"your own: {seam.flag} MODULE:CLASS, a class with the members of {outside.protocol}"
    return "\n".join([*lines, "", end, own])


def _of_package(seam: Seam, name: str) -> str:
    """Return a registered technique in one sentence, or why it cannot be used."""
    try:
        return Page.of(seam, name).sentence.rstrip(".")
    except InputError as error:
        return str(error)


def described(seam: Seam, name: str) -> str:
    """Return a technique's options with defaults, its source, exact limit, files and an example."""
    page = Page.of(seam, name)
    lines = [f"{name}  ({seam.name}, {seam.flag})", page.sentence, ""]
    rows = [(key, page.shown(key), text) for key, text in page.options.items()]
    rows = [("option", "default", "what it does"), *rows] if rows else [("no options", "", "")]
    name_width, default_width = (max(len(row[at]) for row in rows) for at in (0, 1))
    for key, default, text in rows:
        lines.append(_filled(f"{key:{name_width}}  {default:{default_width}}  ", text))
    lines.append("")
    for label in ("Source", "Differs", "Exact", "Bound", "Cost", "Native"):
        if label in page.sections:
            lines.append(_entry(label, page.sections[label]))
    if page.limit:
        lines.append(
            _entry(
                "Limit",
                f"{seam.flag} {page.limit} equals the exact result: {_compared(seam, name)}",
            )
        )
    lines.append(_entry("Example", f'suffice run {seam.flag} {page.example} "your prompt"'))
    return "\n".join(lines)


def _compared(seam: Seam, name: str) -> str:
    if name in seam.table.entries:
        return "a test compares them"
    compared = seam.name == "attention"
    return "compared when a model is loaded" if compared else "says its author"


def _entry(label: str, text: str) -> str:
    return _filled(f"{label.lower():9}", text)


def _filled(start: str, text: str) -> str:
    """Return `start` followed by a text, wrapped, with further lines indented below the text."""
    indent = " " * len(start)
    wrapped = textwrap.fill(text, _COLUMNS, initial_indent=start, subsequent_indent=indent)
    return wrapped.rstrip() or start.rstrip()


@dataclass(frozen=True)
class Page:
    """The description of a technique.

    Attributes:
        sentence: The technique in one sentence.
        sections: The sections of its docstring, by heading, each on one line.
        options: The description of each option, in the order of the fields.
        defaults: The default of each option.
        limit: The setting that must equal the exact result, as text; None if there is none.
        example: A value of the seam's flag.
    """

    sentence: str
    sections: dict[str, str]
    options: dict[str, str]
    defaults: dict[str, Any]
    limit: str | None
    example: str

    @classmethod
    def of(cls, seam: Seam, name: str) -> Page:
        """Return the page of a technique.

        Raises:
            LookupError: A field that no docstring has an entry for.
        """
        technique = seam.table.load(name)
        sections = _sections(documentation(technique))
        texts: dict[str, str] = {}
        for each in reversed(technique.__mro__):
            if each.__module__.startswith("suffice.") or dataclasses.is_dataclass(each):
                texts |= _options(documentation(each))
        fields = [field for field in dataclasses.fields(technique) if field.init]
        inside = name in seam.table.entries  # others may have fewer words
        missing = [field.name for field in fields if inside and field.name not in texts]
        if missing:
            raise LookupError(
                f"{technique.__module__}: no entry in Options for {', '.join(missing)}"
            )
        defaults = {field.name: field.default for field in fields}
        limit = getattr(technique, "exact_limit", lambda: None)()
        return cls(
            sentence=_sentence(seam.table, name, technique),
            sections=sections,
            options={field.name: texts.get(field.name, "") for field in fields},
            defaults=defaults,
            limit=None if limit is None else _text(name, limit),
            example=sections.get("Example") or _example(name, defaults),
        )

    def shown(self, option: str) -> str:
        """Return an option's default as written on the command line."""
        return _shown(self.defaults[option])

    @property
    def paper(self) -> str:
        """The source in short: up to the end of a paper's title."""
        found = _PAPER.match(self.sections.get("Source", ""))
        return _SUBTITLE.sub('"', found[0].strip()) if found else ""


def _sentence(table: Table, name: str, technique: type[Any]) -> str:
    """Return a technique's first line: its module's, if the module has no other technique."""
    if name not in table.entries:
        own = _doc(technique)
        named = own.startswith(f"{technique.__name__}(")  # what a dataclass says by itself
        return _doc(sys.modules[technique.__module__] if named else technique).partition("\n")[0]
    module, _, _ = table.entries[name].partition(":")
    alone = sum(entry.startswith(f"{module}:") for entry in table.entries.values()) == 1
    text = sys.modules[module] if alone and module.endswith(f".{name}") else technique
    return _doc(text).partition("\n")[0].partition("; ")[0]


def documentation(technique: type[Any]) -> str:
    """Return the docstring with a technique's sections: its own, or else its module's."""
    own = _doc(technique)
    return own if _sections(own) or _options(own) else _doc(sys.modules[technique.__module__])


def _doc(origin: object) -> str:
    return inspect.getdoc(origin) or ""


def _sections(documentation: str) -> dict[str, str]:
    """Return the sections of a docstring except the options, each on one line."""
    found: dict[str, str] = {}
    current = None
    for line in documentation.splitlines():
        match = _SECTION.fullmatch(line)
        if match:
            current = match[1]
            if current:
                found[current] = match[2]
        elif current and line.startswith(" "):
            found[current] += f" {line.strip()}"
        elif line:
            current = None
    return found


def _options(documentation: str) -> dict[str, str]:
    """Return the entries of a docstring's options."""
    _, _, text = documentation.partition("\nOptions\n")
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        match = _OPTION.fullmatch(line)
        if match:
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith("     "):
            found[name] += f" {line.strip()}"
        else:
            break
    return found


def _example(name: str, defaults: dict[str, Any]) -> str:
    plain = [(key, value) for key, value in defaults.items() if value is not None][:2]
    given = ",".join(f"{key}={_shown(value)}" for key, value in plain)
    return f"{name}:{given}" if given else name


def _text(name: str, technique: Any) -> str:
    """Return a technique as written on the command line, without options at their defaults."""
    given = [
        f"{field.name}={_word(field, getattr(technique, field.name))}"
        for field in dataclasses.fields(technique)
        if field.init and getattr(technique, field.name) != field.default
    ]
    return f"{name}:{','.join(given)}" if given else name


def _word(field: dataclasses.Field[Any], value: Any) -> str:
    words = field.metadata.get("words", {}).items()
    return next((word for word, meant in words if meant == value), _shown(value))


def _shown(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "to give"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"({text})" if "," in text else text
