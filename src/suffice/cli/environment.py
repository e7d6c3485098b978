"""Variables of the environment that look like a flag's."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffice.cli.groups import Commands

PREFIX = "SUFFICE_"
OTHERS = ("SUFFICE_CACHE", "SUFFICE_ISA")  # no flags; read where they are needed


def misspelt(group: Commands, names: Iterable[str]) -> list[str]:
    """Return a line for every variable that begins with `PREFIX` and sets no flag."""
    found = sorted(name for name in names if name.startswith(PREFIX) and name not in OTHERS)
    if not found:  # as usual, so that only the command that runs is declared
        return []
    known = {name: None for each in group.parameters() for name in each.envvar or ()}
    bare = [name.removeprefix(PREFIX) for name in (*known, *OTHERS)]
    lines = []
    for name in found:
        own = name.removeprefix(PREFIX)
        if own in bare:
            continue
        near = get_close_matches(own, bare, n=1)
        hint = f" Did you mean '{PREFIX}{near[0]}'?" if near else ""
        lines.append(f"suffice: warning: no flag is set by the variable '{name}'.{hint}")
    return lines
