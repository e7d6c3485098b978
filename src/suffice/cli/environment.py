"""Reads flags from the environment, beyond typer's own support."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

PREFIX = "SUFFICE_"
OTHERS = ("SUFFICE_CACHE", "SUFFICE_ISA")  # no flags; read where they are needed


def parameters(group: Any) -> list[Any]:
    """Return the parameters of all commands of a group, and of the groups in it."""
    found: list[Any] = []
    for command in group.commands.values():
        found += parameters(command) if hasattr(command, "commands") else command.params
    return found


def whole_values(group: Any) -> None:
    """Take a variable as a single value of a repeatable option; typer would split it at spaces."""
    for parameter in parameters(group):
        if getattr(parameter, "multiple", False):
            parameter.value_from_envvar = _as_list(parameter.resolve_envvar_value)


def _as_list(read: Any) -> Any:
    def value(context: Any) -> list[str] | None:
        text = read(context)
        return None if text is None else [text]

    return value


def misspelt(group: Any, names: Iterable[str]) -> list[str]:
    """Return a line for every variable that begins with `PREFIX` and sets no flag."""
    known = {name: None for parameter in parameters(group) for name in parameter.envvar or ()}
    bare = [name.removeprefix(PREFIX) for name in (*known, *OTHERS)]
    lines = []
    for name in sorted(names):
        own = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or own in bare:
            continue
        near = get_close_matches(own, bare, n=1)
        hint = f" Did you mean '{PREFIX}{near[0]}'?" if near else ""
        lines.append(f"suffice: warning: no flag is set by the variable '{name}'.{hint}")
    return lines
