"""Settings from TOML files; an unknown key, a wrong type or a value out of range is an error."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from suffice.errors import InputError, unknown

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")
T = TypeVar("T")
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


def limited(
    least: float | None = None,
    most: float | None = None,
    choices: tuple[Any, ...] | None = None,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a setting with the range of its value, or the list of its choices."""
    limits = {"least": least, "most": most, "choices": choices}
    return dataclasses.field(default=default, metadata=limits)


class Settings:
    """A frozen dataclass whose values are checked when it is made.

    Raises:
        InputError: A value has the wrong type, or is not in its range or list.
    """

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            _check_type(type(self).__name__, each.name, value, str(each.type))
            _check_range(type(self).__name__, each.name, value, each.metadata)


def _check_type(owner: str, name: str, value: object, kind: str) -> None:
    if kind not in _KINDS:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "int": number and isinstance(value, int),
        "float": number,
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
    }
    if not fits[kind]:
        raise InputError(f"{owner}: {name}={value!r}: must be {_KINDS[kind]}")


def _check_range(owner: str, name: str, value: Any, limits: Any) -> None:
    choices, least, most = (limits.get(key) for key in ("choices", "least", "most"))
    if choices and value not in choices:
        raise unknown(f"{name} of {owner}", str(value), [str(each) for each in choices])
    low, high = least is not None, most is not None
    if (low and not value >= least) or (high and not value <= most):
        allowed = f"in [{least:g}, {most:g}]" if low and high else ""
        allowed = allowed or (f"at least {least:g}" if low else f"at most {most:g}")
        raise InputError(f"{owner}: {name}={value}: must be {allowed}")


def table(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Raises:
        InputError: There is no such file, or it is not TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise InputError("settings need tomli on Python 3.10: install suffice[hw]") from None
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not TOML: {error}") from None
    return values


def build(kind: type[S], values: dict[str, Any], where: str) -> S:
    """Return a dataclass with the values of a table; errors call the table `where`.

    Raises:
        InputError: A key is unknown or missing, or the dataclass refuses a value.
    """
    fields = {each.name: each for each in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            raise unknown(f"key of {where}", key, fields)
    for name, each in fields.items():
        if name not in values and each.default is dataclasses.MISSING:
            raise InputError(f"{where}: the key '{name}' is missing")
    return kind(**values)


def read(kind: type[S], path: Path) -> S:
    """Return a dataclass with the values of a TOML file.

    Raises:
        InputError: There is no such file, it is not TOML, or `build` refuses its values.
    """
    return build(kind, table(path), path.name)


def entry(what: str, name: str, table: Mapping[str, T]) -> T:
    """Return a table's entry by its name.

    Raises:
        InputError: The table has no such name.
    """
    if name not in table:
        raise unknown(what, name, table)
    return table[name]


def named(folder: Path, what: str, name: str) -> Path:
    """Return the path of a settings file: the name of one in `folder`, or a path ending in .toml.

    Raises:
        InputError: `name` is neither.
    """
    ours = {path.stem: path for path in folder.glob("*.toml")}
    if name in ours:
        return ours[name]
    if name.endswith(".toml"):
        return Path(name)
    raise unknown(what, name, ours)
