"""Commands and groups of commands, which load and declare no more than is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import click

from suffice.cli.flags import Signature
from suffice.cli.parameters import Argument, Option, parameter


def _found(where: str) -> Any:
    """Import what a text such as "module:name" stands for."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


class Program(click.Command):
    """A command that is a function; its parameters are made when they are first asked for.

    The function may be given as "module:name"; its module is then imported as late as that.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., None] | str,
        *,
        help: str | None,
        hidden: bool = False,
        more: Callable[[], Iterable[click.Parameter]] = tuple,
    ) -> None:
        super().__init__(name, help=help, hidden=hidden)
        self._given = function
        self._more = more
        self._signature: Signature | None = None

    @property
    def function(self) -> Callable[..., None]:
        """What the command does."""
        found: Callable[..., None] = (
            _found(self._given) if isinstance(self._given, str) else self._given
        )
        return found

    @property
    def signature(self) -> Signature:
        """What the function asks for; reading it makes the parameters."""
        if self._signature is None:
            self._signature = Signature.of(self.function)
            self.params = [parameter(each) for each in self._signature.declared]
            own = {flag for each in self.params for flag in (*each.opts, *each.secondary_opts)}
            self.params += [each for each in self._more() if own.isdisjoint(each.opts)]
        return self._signature

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with `--help`."""
        assert self.signature
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function."""
        return self.function(**self.signature.arguments(ctx))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments and the flags, under their headings."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            line = each.get_help_record(ctx)
            if line is not None:
                panels.setdefault(_heading(each), []).append(line)
        for heading, lines in panels.items():
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)


def _heading(parameter: click.Parameter) -> str:
    own = parameter.panel if isinstance(parameter, Option | Argument) else None
    return own or "Options"


class Commands(click.Group):
    """A group of commands, in the order in which they are declared.

    With `declared_in`, such as "module:name", the commands are those of another group, whose module
    is imported when they are needed.
    """

    def __init__(self, name: str, *, declared_in: str = "", **settings: Any) -> None:
        super().__init__(name, no_args_is_help=False, **settings)
        self._declared_in = declared_in

    def known(self) -> Mapping[str, click.Command]:
        """Return the commands by name."""
        if self._declared_in:
            self.commands.update(_found(self._declared_in).commands)
            self._declared_in = ""
        return self.commands

    def program(
        self, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Declare a function as a command, by its own name or another; see `Program`."""

        def declare(function: Callable[..., None]) -> Callable[..., None]:
            own = name or function.__name__
            self.add_command(Program(own, function, help=function.__doc__, **settings))
            return function

        return declare

    def parameters(self) -> list[click.Parameter]:
        """Return the parameters of all commands, and of the groups in it."""
        found: list[click.Parameter] = []
        for command in self.known().values():
            if isinstance(command, Commands):
                found += command.parameters()
            elif isinstance(command, Program) and command.signature:
                found += command.params
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.known())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None if there is none of the name."""
        return self.known().get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, by two words if there is such a command."""
        two = " ".join(args[:2])
        if len(args) > 1 and two in self.known():
            return two, self.known()[two], args[2:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the first paragraphs of their helps, uncut."""
        lines = [
            (name, " ".join((each.short_help or (each.help or "").partition("\n\n")[0]).split()))
            for name, each in self.known().items()
            if not each.hidden
        ]
        if lines:
            with formatter.section("Commands"):
                formatter.write_dl(lines)
