"""click's parameters, made from declared ones."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import click

from suffice.cli.flags import Declared

_TYPES: dict[Any, click.ParamType[Any]] = {str: click.STRING, Path: click.Path(path_type=Path)}


class Option(click.Option):
    """A flag with a heading in help, and former names that are accepted but not shown."""

    def __init__(
        self, names: list[str], *, panel: str | None, old: tuple[str, ...] = (), **settings: Any
    ) -> None:
        super().__init__(names, **settings)
        self.panel = panel
        self._accepted = self.opts
        self.opts = [name for name in self.opts if name not in old]

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Make a parser of the command line know the flag by all its names."""
        shown, self.opts = self.opts, self._accepted
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Take a variable as one value of a repeatable flag; click would split it at spaces."""
        if not self.multiple:
            return super().value_from_envvar(ctx)
        text = self.resolve_envvar_value(ctx)
        return None if text is None else [text]

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value for the command; a repeatable flag's is a list, or its default."""
        found = super().process_value(ctx, value)
        return (list(found) or self.default) if self.multiple else found


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


def parameter(own: inspect.Parameter) -> click.Parameter:
    """Return the parameter of a command, declared as `Annotated[type, flag(...)]`."""
    kind, declared = _annotated(own.annotation)
    several = get_origin(kind) is list
    of_one = get_args(kind)[0] if several else kind
    required = own.default is inspect.Parameter.empty
    settings: dict[str, Any] = {"required": required, "metavar": declared.metavar}
    if not required:
        settings["default"] = own.default
    if of_one is not bool:
        settings["type"] = declared.parser or _TYPES[of_one]
    if declared.alone is not None:
        settings["flag_value"] = declared.alone
    if not declared.names:
        return Argument(own.name, help=declared.help, nargs=-1 if several else 1, **settings)
    return Option(
        [own.name, *declared.names],
        help=declared.help,
        panel=declared.panel,
        old=declared.old,
        envvar=declared.variables or None,
        is_flag=of_one is bool,
        multiple=several,
        show_default=not required and own.default not in (None, False),
        **settings,
    )


def _annotated(annotation: Any) -> tuple[Any, Declared]:
    """Return the type and the declaration of a parameter; `X | None` is X."""
    assert get_origin(annotation) is Annotated, annotation
    kind, declared = get_args(annotation)
    kinds = [each for each in get_args(kind) if each is not type(None)]
    union = type(None) in get_args(kind)
    return (kinds[0] if union else kind), declared
