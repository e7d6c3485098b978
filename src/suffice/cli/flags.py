"""How flags are declared and grouped: a group is a dataclass that commands ask for.

A command with a parameter `model: ModelFlags` gets all flags of that group. Each long flag is also
read from the environment: `--top-k` from `SUFFICE_TOP_K`; the command line wins. A variable
is one value, even if the flag may be repeated.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from suffice.engine.options import EngineOptions, Flag, options

OLD: set[str] = set()  # former names of flags, accepted until 0.3 but not shown


def flag(
    *names: str,
    help: str,
    panel: str | None = None,
    environment: bool = True,
    old: tuple[str, ...] = (),
    **extra: Any,
) -> Any:
    """Declare an option whose long names have environment variables, unless `environment=False`.

    `old` are its former names; see `hide_old_names`.
    """
    OLD.update(old)
    names = (*names, *old)
    long = [name.removeprefix("--") for name in names if name.startswith("--")]
    long = [name for name in long if name != "cache"]  # SUFFICE_CACHE is a folder (see paths)
    variables = ["SUFFICE_" + name.upper().replace("-", "_") for name in long]
    return typer.Option(
        *names,
        help=help,
        envvar=variables if environment else None,
        show_envvar=False,
        rich_help_panel=panel,
        **extra,
    )


def whole(text: str | int) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a whole number") from None


def number(text: str | float) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a number") from None


WHOLE: dict[str, Any] = {"parser": whole, "metavar": "N"}
NUMBER = {"parser": number, "metavar": "X"}


class EngineFlags:
    """Marks a field of a group as options of the engine, given by name; without names, all."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options as parameters for typer."""
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


def _built(group: type[Any], values: dict[str, Any]) -> Any:
    """Return a group built from the values of its members, which are removed from `values`."""
    made: dict[str, Any] = {}
    for name, member in members(group).items():
        if isinstance(member, inspect.Parameter):
            made[name] = values.pop(name)
        else:
            made[name] = EngineOptions(**{own.name: values.pop(own.name) for own in member})
    return group(**made)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a group of flags by the flags of the group."""
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and dataclasses.is_dataclass(group):
            groups[parameter.name] = group
            for member in members(group).values():
                parameters += [member] if isinstance(member, inspect.Parameter) else member
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        grouped = {name: _built(group, values) for name, group in groups.items()}
        command(**values, **grouped)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def hide_old_names(parameters: Iterable[Any]) -> None:
    """Make parameters accept their old names, but show only the new ones."""
    for parameter in parameters:
        if not OLD.isdisjoint(parameter.opts):
            parameter.add_to_parser = _with_names(parameter, parameter.opts)
            parameter.opts = [name for name in parameter.opts if name not in OLD]


def show_whole_sentences(group: Any) -> None:
    """Make listings of commands show the first paragraph of each command's help, uncut."""
    for command in group.commands.values():
        command.short_help = command.short_help or (command.help or "").partition("\n\n")[0]
        if hasattr(command, "commands"):
            show_whole_sentences(command)


def hide_list_types(parameters: Iterable[Any]) -> None:
    """Make help show arguments that take several values without a type such as `<list[str]>`."""
    for parameter in parameters:
        if parameter.nargs == -1:
            parameter.display_type_rich = lambda ctx: None


def _with_names(parameter: Any, names: list[str]) -> Any:
    add = parameter.add_to_parser

    def add_all(parser: Any, context: Any) -> None:
        shown, parameter.opts = parameter.opts, names
        try:
            add(parser, context)
        finally:
            parameter.opts = shown

    return add_all
