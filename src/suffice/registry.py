"""Names to techniques: `"aet:k=0.9,v=0.001"` becomes `AET(k=0.9, v=0.001)`."""

from __future__ import annotations

import dataclasses
import importlib
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from suffice.errors import InputError, unknown

MOST = 2**31 - 1  # that an integer of the core can be
_COMMA = re.compile(r",(?![^(]*\))")  # outside of brackets


class Table:
    """The techniques of one seam: name -> "module:Class", imported on first use.

    `native` are those that the core computes, which a test holds against what they hand it; None
    for a seam whose techniques decide and compute nothing.
    """

    def __init__(
        self, kind: str, entries: dict[str, str], native: frozenset[str] | None = None
    ) -> None:
        self.kind = kind
        self.entries = dict(entries)
        self.native = native

    def names(self) -> list[str]:
        """Return the known names, sorted."""
        return sorted(self.entries)

    def load(self, name: str) -> type[Any]:
        """Return the class behind a name.

        Raises:
            InputError: The name is not in the table.
        """
        if name not in self.entries:
            raise unknown(self.kind, name, self.entries)
        module, _, attribute = self.entries[name].partition(":")
        return typing.cast("type[Any]", getattr(importlib.import_module(module), attribute))

    def build(self, text: str) -> Any:
        """Build a technique from `name` or `name:field=value,field=value`.

        The value of a technique's one field, or of the one that its class names as `alone`, may be
        given alone, first: `name:value`; and so may the name of a field that is true or false. A
        value that has commas itself stands in brackets: `name:field=(other:a=1,b=2)`.

        Raises:
            InputError: Unknown name or field, or a value of the wrong type.
        """
        name, _, options = text.partition(":")
        technique = self.load(name)
        return technique(**_parse(f"{self.kind} '{name}'", technique, options))

    def make(self, name: str, options: Mapping[str, Any]) -> Any:
        """Build a technique from its name and options by name, such as those of JSON.

        Raises:
            InputError: Unknown name or option, or a value of the wrong type.
        """
        technique, owner = self.load(name), f"{self.kind} '{name}'"
        hints = _hints(technique)
        for key in options:
            if key not in hints:
                raise unknown(f"option of {owner}", str(key), hints)
        return technique(
            **{
                key: _convert(owner, key, _bare(str(value)), hints[key])
                for key, value in options.items()
            }
        )

    def take(self, name: str, value: Any) -> Any:
        """Return a technique that is given as such or by its name; errors call it `name`.

        Raises:
            InputError: It is neither, or the name or an option is unknown.
        """
        if isinstance(value, str):
            return self.build(value)
        if not isinstance(value, type) and self.holds(value):
            return value
        known = ", ".join(self.names())
        raise InputError(f"{name}={value!r}: must be a technique or its name. Known: {known}")

    def holds(self, technique: object) -> bool:
        """Whether a technique's class, or one that it is derived from, is registered here."""
        paths = {f"{kind.__module__}:{kind.__qualname__}" for kind in type(technique).__mro__}
        return not paths.isdisjoint(self.entries.values())

    def name_of(self, technique: object) -> str:
        """Return the name under which a technique's class is registered."""
        path = f"{type(technique).__module__}:{type(technique).__qualname__}"
        return next(name for name, entry in self.entries.items() if entry == path)


def _hints(technique: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(technique)
    return {field.name: hints[field.name] for field in dataclasses.fields(technique) if field.init}


def _parse(owner: str, technique: type[Any], options: str) -> dict[str, Any]:
    fields = _hints(technique)
    only = next(iter(fields)) if len(fields) == 1 else None  # "step:256" can only mean that
    alone = getattr(technique, "alone", only)
    values: dict[str, Any] = {}
    for at, item in enumerate(filter(None, _COMMA.split(options))):
        key, equals, value = item.partition("=")
        if not equals and fields.get(item) is bool:
            value = "true"
        elif not equals and alone and (at == 0 or alone in values):
            key, equals, value = alone, "=", item
        if not equals and not value:
            raise InputError(f"{owner}: '{item}' is not of the form option=value")
        if key not in fields:
            raise unknown(f"option of {owner}", key, fields)
        if key in values:
            raise InputError(f"{owner}: option '{key}' is given twice")
        values[key] = _convert(owner, key, _bare(value), fields[key])
    return values


def _bare(value: str) -> str:
    """Return a value without the brackets it stands in."""
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
        raise InputError(f"{owner}: {key}='{value}' must be of type {kind.__name__}") from None
    if kind is int and abs(found) > MOST:
        raise InputError(f"{owner}: {key}='{value}' must be between -{MOST} and {MOST}")
    return found
