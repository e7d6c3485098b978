"""How a setting is offered: declared once, with its default, by the field of a dataclass.

The command line makes flags of the fields and reads variables of the environment; the server on Ray
takes the same names as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

REQUIRED = MISSING  # in place of a default
Fault = Callable[[Any], str | None]  # returns what a value must be, None if it is that


@dataclass(frozen=True)
class Flag:
    """How a field is offered.

    Attributes:
        names: Such as "-c" and "--ctx-size"; without any, it is an argument, given by its place.
        help: What it is, in a sentence or two.
        panel: The heading in `--help`; None for the usual one.
        environment: Whether variables set it, too.
        metavar: What stands for the value in `--help`.
        alone: The value of a flag that is given without one; None if it must have one.
    """

    names: tuple[str, ...]
    help: str
    panel: str | None = None
    environment: bool = True
    metavar: str | None = None
    alone: str | None = None

    @property
    def long(self) -> str:
        """The first long name."""
        return next(name for name in self.names if name.startswith("--")).partition("/")[0]

    @property
    def argument(self) -> str:
        """Its name as an argument in Python."""
        return self.long.lstrip("-").replace("-", "_")

    @property
    def variables(self) -> list[str]:
        """The variables of the environment that set it."""
        long = [name[2:].partition("/")[0] for name in self.names if name.startswith("--")]
        return ["SUFFICE_" + name.upper().replace("-", "_") for name in long if self.environment]


def flag(default: Any, names: str, help: str, fault: Fault | None = None, **more: Any) -> Any:
    """Declare a field that is offered as a flag; `names` are separated by spaces."""
    own = Flag(tuple(names.split()), help, **more)
    return field(default=default, metadata={"flag": own, "fault": fault})


def argument(default: Any, help: str, metavar: str | None = None) -> Any:
    """Declare a parameter that is given by its place."""
    return flag(default, "", help, metavar=metavar)


def offered(group: type[Any]) -> dict[str, tuple[Field[Any], Flag]]:
    """Return the fields of a dataclass that are flags, by name."""
    return {each.name: (each, own) for each in fields(group) if (own := flag_of(each.metadata))}


def flag_of(metadata: Mapping[Any, Any]) -> Flag | None:
    """Return how a field with such metadata is offered; None if it is not."""
    found: Flag | None = metadata.get("flag")
    return found


def again(group: type[Any], name: str, default: Any = ..., **more: Any) -> Any:
    """Declare a field as another dataclass does, under the usual heading."""
    own, found = offered(group)[name]
    changed = {"panel": None, **more}
    return field(
        default=own.default if default is ... else default,
        metadata={"flag": replace(found, **changed)},
    )
