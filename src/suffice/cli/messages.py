"""Messages of bad input in the words of the command line: flags as given, not Python's options."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise

import click
from click.core import ParameterSource

from suffice.cli.groups import Commands
from suffice.cli.options import SAMPLING_NAMES
from suffice.errors import OptionError

_NAMED = re.compile(r"\b(\w+)=([^\s,;:]+)")
_FIELDS = {option: flag for flag, option in SAMPLING_NAMES.items()}
# What a flag offers where the option of Python has None.
_NONE = {"max_tokens": ", or -1 to fill the context"}
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)


def in_flags(
    error: OptionError, arguments: Sequence[str], parameters: Iterable[click.Parameter]
) -> str:
    """Return the message of a refused value with the flag or the variable that set it.

    `parameters` are those of all commands. An option that the user did not set keeps its name.
    """
    flags = [each for each in parameters if each.opts and each.opts[0].startswith("-")]
    known = {name for each in flags for name in each.opts}

    def named(option: str, value: str, given: bool = False) -> str:
        own = [each for each in flags if each.name == _FIELDS.get(option, option)]
        names = {name for each in own for name in each.opts}
        if (found := _argument(arguments, names, known - names)) is not None:
            flag, text = found
            return f"{flag} {text if given else value}"
        variables = [name for each in own for name in each.envvar or ()]
        found_in = next((name for name in variables if os.environ.get(name)), None)
        if found_in is not None:
            return f"{found_in}={os.environ[found_in] if given else value}"
        return f"{option}={value}"

    must = _NAMED.sub(lambda match: named(match[1], match[2]), error.must)
    first = named(error.option, repr(error.value), given=True)
    return f"{first}: {must}{_NONE.get(error.option, '') if error.none else ''}"


def _argument(
    arguments: Sequence[str], names: Iterable[str], others: set[str]
) -> tuple[str, str] | None:
    """Return the last given flag of some, and its text: `-n 5`, `-n5`, `--top-k 5`, `--top-k=5`."""
    found = None
    for argument, after in pairwise([*arguments, ""]):
        for name in names if argument not in others else ():
            rest = argument.removeprefix(name)
            if argument == name:
                found = name, after
            elif rest != argument and name.startswith("--") and rest.startswith("="):
                found = name, rest[1:]
            elif rest != argument and len(name) == 2:
                found = name, rest
    return None if found is None else (found[0], found[1] or "''")


def of_usage(error: click.UsageError) -> str:
    """Return the message of a usage error, with what would be right."""
    context, message = error.ctx, error.format_message()
    if context is None:
        return message
    if isinstance(error, click.BadParameter) and (name := _variable(error, context)) is not None:
        error.param_hint = f"'{name}'"
        return error.format_message()
    command = context.command
    if isinstance(error, click.NoSuchOption):
        shown = [each for each in command.get_params(context) if isinstance(each, click.Option)]
        names = [name for each in shown if not each.hidden for name in each.opts]
        path, given = context.command_path, error.option_name
        return f"unknown flag '{given}'.{_near(given, names)} `{path} --help` lists the flags"
    if isinstance(command, Commands):
        names = [name for name, each in command.known().items() if not each.hidden]
        return f"{message} Known: {', '.join(sorted(names))}"
    if extra := _EXTRA.fullmatch(message):
        quotes = "put a prompt of several words in quotes; " if command.name == "run" else ""
        return f"unexpected '{extra[1]}': {quotes}{_help(context)}"
    return f"{message} {_help(context)}" if isinstance(error, click.MissingParameter) else message


def _variable(error: click.BadParameter, context: click.Context) -> str | None:
    """Return the variable that set the parameter whose value is bad; None if none did."""
    own = error.param
    if own is None or own.name is None:
        return None
    if context.get_parameter_source(own.name) is not ParameterSource.ENVIRONMENT:
        return None
    names = [own.envvar] if isinstance(own.envvar, str) else own.envvar or ()
    return next((name for name in names if os.environ.get(name)), None)


def _help(context: click.Context) -> str:
    return f"`{context.command_path} --help` lists what it takes"


def _near(given: str, names: Iterable[str]) -> str:
    """Return a hint of the flag that begins with the given one, or else of the most similar."""
    bare = {name.lstrip("-"): name for name in names}
    text = given.lstrip("-")
    begins = [name for name in bare if name.startswith(text)] if len(text) > 1 else []
    close = begins or get_close_matches(text, bare, n=1)
    return f" Did you mean '{bare[close[0]]}'?" if close else ""
