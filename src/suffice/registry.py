"""Techniques by name: `"aet:keys=0.9"` becomes `AET(keys=0.9)`.

`"my_module:MyRule:keep=0.5"` becomes `MyRule(keep=0.5)` of a module from outside.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from suffice.errors import InputError, unknown, unknown_option
from suffice.outside import Outside, made

MOST = 2**31 - 1  # largest integer of the core
CALIBRATED = "calibrated"  # the option of techniques whose others are in a calibration
_COMMA = re.compile(r",(?![^(]*\))")  # a comma outside of brackets


class Table:
    """The techniques of one seam: name -> "module:Class", imported on first use.

    `native` are those that the core computes, which a test holds against what they hand it; None
    for a seam whose techniques decide and compute nothing. `outside`: the protocol of techniques
    that other packages may bring, and the name of the seam; None: they may not.
    """

    def __init__(
        self,
        kind: str,
        entries: dict[str, str],
        native: frozenset[str] | None = None,
        *,
        outside: tuple[str, type[Any]] | None = None,
    ) -> None:
        self.kind = kind
        self.entries = dict(entries)
        self.native = native
        self.outside: Outside | None = None
        if outside is not None:
            seam, protocol = outside
            name = f"{protocol.__module__}.{protocol.__qualname__}"
            self.outside = Outside(kind, seam, name, members(protocol))

    def names(self) -> list[str]:
        """Return the known names, sorted."""
        return sorted(self.entries)

    def split(self, text: str) -> tuple[str, str, str]:
        """Return the name, the colon after it if there is one, and the options of a text."""
        name, colon, options = text.partition(":")
        if self.outside is None or name in self.entries:
            return name, colon, options
        return self.outside.split(text)

    def load(self, name: str, imports: bool = True) -> type[Any]:
        """Return the class registered under a name, or that of `module:Class`.

        Without `imports`, nothing from outside is loaded that was not loaded before: for names
        that others than the user give.

        Raises:
            InputError: The name is not in the table, nor registered by a package; or there is no
                such class.
        """
        if name not in self.entries:
            if self.outside is not None:
                return self.outside.load(name, self.entries, imports)
            raise unknown(self.kind, name, self.entries)
        module, _, attribute = self.entries[name].partition(":")
        return typing.cast("type[Any]", getattr(importlib.import_module(module), attribute))

    def build(self, text: str, imports: bool = True) -> Any:
        """Build a technique from `name` or `name:field=value,field=value`.

        Short forms: `name:value` sets a technique's only field, or the field whose `spelling` says
        `alone`; the value comes first. `name:field` sets a boolean field to true. A value that
        contains commas stands in brackets: `name:field=(other:a=1,b=2)`. For `imports` see `load`.

        Raises:
            InputError: Unknown name or field, or a value of the wrong type.
        """
        name, _, _ = self.split(text)
        return self._made(name, self.load(name, imports), self.given(text, imports))

    def _made(self, name: str, technique: type[Any], options: Mapping[str, Any]) -> Any:
        if name in self.entries:
            return technique(**options)
        return made(f"{self.kind} '{name}'", technique, options)

    def given(self, text: str, imports: bool = True) -> dict[str, Any]:
        """Return the options that `name:field=value,...` gives; see `build`.

        Raises:
            InputError: Unknown name or field, a value of the wrong type, or options next to
                `calibrated`, which a calibration sets.
        """
        name, colon, options = self.split(text)
        technique = self.load(name, imports)
        if colon and not options:
            raise InputError(f"{self.kind} '{text}': no option follows the colon: leave it out")
        found = _parse(_Options(f"{self.kind} '{name}'", technique), options)
        if found.get(CALIBRATED) and len(found) > 1:
            raise next_to_calibrated(name, *next(x for x in found.items() if x[0] != CALIBRATED))
        return found

    def make(self, name: str, options: Mapping[str, Any]) -> Any:
        """Build a technique from its name and a mapping of options, such as one from JSON.

        Raises:
            InputError: Unknown name or option, or a value of the wrong type.
        """
        technique, values = self.load(name), dict[str, Any]()
        own = _Options(f"{self.kind} '{name}'", technique)
        for key, value in options.items():
            _take(own, values, str(key), str(value))
        return self._made(name, technique, values)

    def take(self, name: str, value: Any) -> Any:
        """Return `value` if it is a technique, or build it if it is text; errors call it `name`.

        Raises:
            InputError: It is neither a technique nor text, or a name or an option is unknown.
        """
        if isinstance(value, str):
            return self.build(value)
        if not isinstance(value, type) and (
            self.holds(value) or (self.outside is not None and self.outside.takes(value))
        ):
            return value
        known = ", ".join(self.names())
        raise InputError(f"{name}={value!r}: must be a technique or its name. Known: {known}")

    def holds(self, technique: object) -> bool:
        """Whether a technique's class or one of its base classes is registered here."""
        paths = {f"{kind.__module__}:{kind.__qualname__}" for kind in type(technique).__mro__}
        return not paths.isdisjoint(self.entries.values())

    def name_of(self, technique: object) -> str:
        """Return the name under which a technique's class is registered, or its `module:Class`."""
        path = f"{type(technique).__module__}:{type(technique).__qualname__}"
        known = next((name for name, entry in self.entries.items() if entry == path), None)
        if known is None:
            assert self.outside is not None, path
            return self.outside.name_of(type(technique))
        return known

    def text_of(self, technique: object) -> str:
        """Return a technique as `build` takes it: its name, and the fields that are no default."""
        fields: Any = dataclasses.fields(technique)  # type: ignore[arg-type]
        own = {each.name: getattr(technique, each.name) for each in fields if each.init}
        given = [
            f"{each.name}={_written(own[each.name])}"
            for each in fields
            if each.init and own[each.name] != each.default
        ]
        return ":".join(filter(None, (self.name_of(technique), ",".join(given))))


def members(protocol: type[Any]) -> list[str]:
    """Return the public members of a protocol."""
    return [name for name in vars(protocol) if not name.startswith("_")]


def spelling(*, alone: bool = False, words: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the metadata of a technique's field: how its option may be written.

    Args:
        alone: Whether the value may be given without a name, first.
        words: Values that have a name of their own.
    """
    return {"alone": alone, "words": words or {}}


def next_to_calibrated(name: str, option: str, value: Any) -> InputError:
    """Return the error of an option that is given together with `calibrated`."""
    return InputError(
        f"{name}: {option}={value} contradicts {CALIBRATED}: the calibration sets all options"
    )


_type_hints = functools.cache(typing.get_type_hints)  # which reads a class's whole module


class _Options:
    """The options of a technique, as they are written."""

    def __init__(self, owner: str, technique: type[Any]) -> None:
        hints = _type_hints(technique)  # type: ignore[arg-type]  # classes have a hash
        own = [field for field in dataclasses.fields(technique) if field.init]
        self.owner = owner
        self.hints = {field.name: hints[field.name] for field in own}
        # A class that only changes a field's default leaves its spelling to the one above.
        above = [kind.__dict__.get("__dataclass_fields__", {}) for kind in technique.__mro__]
        told = [(field.name, field.metadata) for kind in above for field in kind.values()]
        spelt = [(name, each) for name, each in told if name in self.hints and "alone" in each]
        self.words = {name: each["words"] for name, each in reversed(spelt)}
        only = next(iter(self.hints)) if len(own) == 1 else None  # "step:256" can only mean that
        self.alone = next((name for name, each in spelt if each["alone"]), only)

    def value(self, name: str, text: str) -> Any:
        """Return the value of a field.

        Raises:
            InputError: A text of the wrong type.
        """
        if name not in self.hints:
            raise unknown_option(self.owner, name, self.hints)
        words, text = self.words.get(name, {}), _bare(text)
        return words[text] if text in words else _convert(self.owner, name, text, self.hints[name])


def _parse(options: _Options, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    items: list[str] = _COMMA.split(text) if text else []
    for at, item in enumerate(items):
        if not item:
            raise InputError(f"{options.owner}: '{text}' has a comma with no option next to it")
        key, equals, value = item.partition("=")
        if not equals and options.hints.get(item) is bool:
            value = "true"
        elif not equals and options.alone and (at == 0 or options.alone in values):
            key, equals, value = options.alone, "=", item
        if not equals and not value:
            raise InputError(f"{options.owner}: '{item}' is not of the form option=value")
        _take(options, values, key, value)
    return values


def _take(options: _Options, values: dict[str, Any], name: str, value: str) -> None:
    if name in values:
        raise InputError(f"{options.owner}: option '{name}' is given twice")
    values[name] = options.value(name, value)


def _written(value: Any) -> str:
    """Return a value as a text has it: true, false and none in small letters, names as they are."""
    return value if isinstance(value, str) else str(value).lower()


def _bare(value: str) -> str:
    """Return a value without its enclosing brackets."""
    return value[1:-1] if value.startswith("(") and value.endswith(")") else value


def _convert(owner: str, key: str, value: str, hint: Any) -> Any:
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value.lower() in ("none", "auto") and type(None) in choices:
        return None
    kind = next(choice for choice in choices if choice is not type(None))
    if kind is bool:
        if value.lower() in ("true", "1", "yes", "on"):
            return True
        if value.lower() in ("false", "0", "no", "off"):
            return False
        raise InputError(f"{owner}: {key}='{value}' must be true or false")
    try:
        found = kind(value)
    except ValueError:
        number = "a whole number" if kind is int else "a number"
        raise InputError(f"{owner}: {key}='{value}' must be {number}") from None
    if kind is int and abs(found) > MOST:
        raise InputError(f"{owner}: {key}='{value}' must be between -{MOST} and {MOST}")
    return found
