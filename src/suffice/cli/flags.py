"""How flags are declared and grouped: a group is a dataclass that commands ask for.

A command with a parameter `model: ModelFlags` gets all flags of that group. Each long flag is also
read from the environment: `--top-k` from `SUFFICE_TOP_K`; the command line wins. A variable
is one value, even if the flag may be repeated. `suffice.cli.parameters` makes click's parameters of
the declarations.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import click

from suffice.engine.options import EngineOptions, Flag, options


@dataclass(frozen=True)
class Declared:
    """How the command line offers a parameter of a command.

    Attributes:
        names: Of the flag; without names the parameter is an argument.
        help: What it is, in a sentence or two.
        panel: The heading in `--help`; None for the usual one.
        variables: The environment variables that set it.
        old: Those of `names` that are former ones: accepted until 0.3, but not shown.
        parser: Returns the value of a text; None for the type of the annotation.
        metavar: What stands for the value in `--help`.
        alone: The value of a flag that is given without one; None if it must have one.
    """

    names: tuple[str, ...]
    help: str
    panel: str | None = None
    variables: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    parser: Callable[[Any], Any] | None = None
    metavar: str | None = None
    alone: str | None = None


def flag(
    *names: str,
    help: str,
    panel: str | None = None,
    environment: bool = True,
    old: tuple[str, ...] = (),
    parser: Callable[[Any], Any] | None = None,
    metavar: str | None = None,
    alone: str | None = None,
) -> Any:
    """Declare a flag whose long names have environment variables, unless `environment=False`."""
    names = (*names, *old)
    long = [name.removeprefix("--") for name in names if name.startswith("--")]
    long = [name for name in long if name != "cache"]  # SUFFICE_CACHE is a folder (see paths)
    variables = ["SUFFICE_" + name.upper().replace("-", "_") for name in long]
    return Declared(
        names, help, panel, tuple(variables) if environment else (), old, parser, metavar, alone
    )


def argument(*, help: str, metavar: str | None = None) -> Any:
    """Declare an argument, which is given by its place."""
    return Declared((), help, metavar=metavar)


def whole(text: str | int) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a whole number") from None


def number(text: str | float) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a number") from None


WHOLE: dict[str, Any] = {"parser": whole, "metavar": "N"}
NUMBER: dict[str, Any] = {"parser": number, "metavar": "X"}


class EngineFlags:
    """Marks a field of a group as options of the engine, given by name; without names, all."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options as parameters of a command."""
        return [
            _parameter(name, field, option.flag)
            for name, (field, option) in options().items()
            if option.flag is not None and name in (self.names or options())
        ]


def plain(field: dataclasses.Field[Any], own: Flag) -> Any:
    """Return an option's default on the command line."""
    return field.default if own.default is ... else own.default


def _parameter(name: str, field: dataclasses.Field[Any], own: Flag) -> inspect.Parameter:
    default = plain(field, own)
    kind: Any = int if own.whole else str
    extra = WHOLE if own.whole else {}
    found = flag(*own.names, help=own.help, panel=own.panel, old=own.old, **extra)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, found],
    )


def members(group: type[Any]) -> dict[str, inspect.Parameter | list[inspect.Parameter]]:
    """Return the parameters of a group by field: one, or those of the engine's options."""
    found: dict[str, inspect.Parameter | list[inspect.Parameter]] = {}
    for name, member in inspect.signature(group, eval_str=True).parameters.items():
        marks = getattr(member.annotation, "__metadata__", ())
        engine = next((mark for mark in marks if isinstance(mark, EngineFlags)), None)
        found[name] = (
            member.replace(kind=member.KEYWORD_ONLY) if engine is None else engine.parameters()
        )
    return found


@dataclass(frozen=True)
class Signature:
    """What a command asks for: parameters on the command line, and groups of them by name."""

    parameters: list[inspect.Parameter]
    groups: Mapping[str, type[Any]]
    context: str | None  # the name of the parameter that takes click's context

    @classmethod
    def of(cls, command: Callable[..., Any]) -> Signature:
        """Read a function's signature; parameters that are groups become those of the group."""
        groups: dict[str, type[Any]] = {}
        parameters: list[inspect.Parameter] = []
        context = None
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            kind = parameter.annotation
            if kind is click.Context:
                context = parameter.name
            elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
                groups[parameter.name] = kind
                for member in members(kind).values():
                    parameters += [member] if isinstance(member, inspect.Parameter) else member
            else:
                parameters.append(parameter)
        return cls(parameters, groups, context)

    def arguments(self, context: click.Context) -> dict[str, Any]:
        """Return what the function is called with, from the values of click's parameters."""
        values = dict(context.params)
        grouped = {name: _built(group, values) for name, group in self.groups.items()}
        own = {} if self.context is None else {self.context: context}
        return {**values, **grouped, **own}


def _built(group: type[Any], values: dict[str, Any]) -> Any:
    """Return a group built from the values of its members, which are removed from `values`."""
    made: dict[str, Any] = {}
    for name, member in members(group).items():
        if isinstance(member, inspect.Parameter):
            made[name] = values.pop(name)
        else:
            made[name] = EngineOptions(**{own.name: values.pop(own.name) for own in member})
    return group(**made)
