"""click's parameters, made from declared ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from suffice.cli.flags import REQUIRED, Declared


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


# By the annotation of the field; any other is a text.
_TYPES: dict[str, Any] = {"int": whole, "float": number, "Path": click.Path(path_type=Path)}
_METAVARS = {"int": "N", "float": "X"}


class Option(click.Option):
    """A flag with a heading in help."""

    def __init__(
        self, names: list[str], *, panel: str | None, several: type[Any] = list, **settings: Any
    ) -> None:
        super().__init__(names, **settings)
        self.panel = panel
        self._several = several

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Take a variable as one value of a repeatable flag; click would split it at spaces."""
        if not self.multiple:
            return super().value_from_envvar(ctx)
        text = self.resolve_envvar_value(ctx)
        return None if text is None else [text]

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value for the command; a repeatable flag's are several, or its default."""
        found = super().process_value(ctx, value)
        return (self._several(found) or self.default) if self.multiple else found


class Argument(click.Argument):
    """An argument that help describes."""

    panel = "Arguments"

    def __init__(self, name: str, *, help: str, **settings: Any) -> None:
        super().__init__([name], **settings)
        self._help = help

    def make_metavar(self, ctx: click.Context) -> str:
        """Return what stands for it in the line of usage."""
        shown = self.human_readable_name if self.required else f"[{self.human_readable_name}]"
        return shown if self.nargs == 1 else f"{shown}..."

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return its name in an error."""
        return f"'{self.human_readable_name}'"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return its line in help."""
        return self.human_readable_name, self._help + ("  [required]" if self.required else "")

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value for the command: a list, or the default, where several can be."""
        found = super().process_value(ctx, value)
        return (list(found) or None) if self.nargs == -1 else found


def parameter(own: Declared) -> click.Parameter:
    """Return the parameter of a command."""
    kind = own.kind.removesuffix(" | None")
    group, _, rest = kind.partition("[")
    several = group in ("list", "tuple")
    of_one = rest.rstrip("].").removesuffix(", ") if several else kind
    required = own.default is REQUIRED
    metavar = own.flag.metavar or _METAVARS.get(of_one)
    settings: dict[str, Any] = {"required": required, "metavar": metavar}
    if not required:
        settings["default"] = own.default
    if of_one != "bool":
        settings["type"] = _TYPES.get(of_one, click.STRING)
    if own.flag.alone is not None:
        settings["flag_value"] = own.flag.alone
    if not own.flag.names:
        return Argument(own.name, help=own.flag.help, nargs=-1 if several else 1, **settings)
    return Option(
        [own.name, *own.flag.names],
        help=own.flag.help,
        panel=own.flag.panel,
        envvar=own.flag.variables or None,
        is_flag=of_one == "bool",
        multiple=several,
        several=tuple if group == "tuple" else list,
        show_default=not required and own.default not in (None, False, ()),
        **settings,
    )
