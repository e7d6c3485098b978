"""How flags are grouped: a group is a dataclass that commands ask for.

A command with a parameter `model: ModelFlags` gets all flags of that group (`suffice.flags`). Each
long flag is also read from the environment: `--top-k` from `SUFFICE_TOP_K`; the command line wins.
A variable is one value, even if the flag may be repeated. `suffice.cli.parameters` makes click's
parameters of the declarations.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from suffice.engine.options import EngineOptions, options
from suffice.flags import REQUIRED, Flag, argument, flag, flag_of, offered

__all__ = ["REQUIRED", "Declared", "Signature", "argument", "engine_flags", "flag", "members"]


class Declared(NamedTuple):
    """A flag or an argument of a command: its name in Python, type as text, default and flag."""

    name: str
    kind: str
    default: Any
    flag: Flag


def engine_flags(*names: str, without: Sequence[str] = ()) -> Any:
    """Declare a group's field as options of the engine, given by name; without names, all.

    Those in `without` have their defaults.
    """
    shown = {name: each for name, each in options().items() if each[1].flag is not None}
    declared = {
        name: Declared(name, str(own.type), option.plain, option.flag)
        for name, (own, option) in shown.items()
        if option.flag is not None and name in (names or shown) and name not in without
    }

    make = functools.partial(EngineOptions, **{name: shown[name][1].plain for name in without})

    def nothing_given() -> EngineOptions:
        return EngineOptions(**{name: option.plain for name, (_, option) in shown.items()})

    return dataclasses.field(default_factory=nothing_given, metadata={"group": (make, declared)})


def flags_of(group: type[Any], make: Callable[..., Any], named: bool = False) -> Any:
    """Declare a group's field as the flags of another dataclass, which `make` is called with.

    With `named`, they are called in Python as on the command line.
    """
    declared = {
        name: Declared(own.argument if named else name, str(each.type), each.default, own)
        for name, (each, own) in offered(group).items()
    }
    return dataclasses.field(default_factory=make, metadata={"group": (make, declared)})


def members(group: type[Any]) -> dict[str, dict[str, Declared]]:
    """Return what is declared by each field of a group: one flag, or those of another group."""
    found = {}
    for each in dataclasses.fields(group):
        own = flag_of(each.metadata)
        if own is None:
            found[each.name] = each.metadata["group"][1]
        else:
            found[each.name] = {"": Declared(each.name, str(each.type), each.default, own)}
    return found


@dataclass(frozen=True)
class Signature:
    """What a command asks for: what is declared, and groups of it by the parameter's name."""

    declared: list[Declared]
    groups: Mapping[str, type[Any]]
    context: str | None  # the name of the parameter that takes click's context

    @classmethod
    def of(cls, command: Callable[..., Any]) -> Signature:
        """Read a function's signature; parameters that are groups become those of the group."""
        groups: dict[str, type[Any]] = {}
        declared: list[Declared] = []
        context = None
        for own in inspect.signature(command).parameters.values():
            given = own.default
            if isinstance(given, dataclasses.Field):
                found = flag_of(given.metadata)
                assert found is not None, own.name
                declared.append(Declared(own.name, own.annotation, given.default, found))
                continue
            kind = eval(own.annotation, command.__globals__)
            if kind is click.Context:
                context = own.name
            else:
                groups[own.name] = kind
                declared += [each for member in members(kind).values() for each in member.values()]
        return cls(declared, groups, context)

    def arguments(self, context: click.Context) -> dict[str, Any]:
        """Return what the function is called with, from the values of click's parameters."""
        values = dict(context.params)
        grouped = {name: _built(group, values) for name, group in self.groups.items()}
        own = {} if self.context is None else {self.context: context}
        return {**values, **grouped, **own}


def _built(group: type[Any], values: dict[str, Any]) -> Any:
    """Return a group built from the values of its members, which are removed from `values`."""
    made: dict[str, Any] = {}
    for each in dataclasses.fields(group):
        if flag_of(each.metadata) is not None:
            made[each.name] = values.pop(each.name)
        else:
            make, declared = each.metadata["group"]
            made[each.name] = make(**{name: values.pop(own.name) for name, own in declared.items()})
    return group(**made)
