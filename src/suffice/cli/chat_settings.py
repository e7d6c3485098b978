"""`/set` of a chat: the sampling flags of the command line, under the same names."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from suffice.cli.options import SAMPLING_NAMES, SamplingFlags
from suffice.errors import InputError, OptionError, unknown
from suffice.flags import offered

_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


def _names() -> dict[str, tuple[str, Any]]:
    """Return the field and its type by each name that an option has as a flag."""
    kinds = typing.get_type_hints(SamplingFlags)
    return {
        flag[2:].replace("-", "_"): (name, kinds[name])
        for name, (_, own) in offered(SamplingFlags).items()
        for flag in own.names
        if flag.startswith("--")
    }


def settings(sampling: SamplingFlags) -> str:
    """Return all options and their values in one line."""
    values = dataclasses.asdict(sampling)
    return ", ".join(f"{name} {_shown(value)}" for name, value in values.items())


def changed(sampling: SamplingFlags, given: str) -> SamplingFlags:
    """Return the flags with one option changed; `given` is `OPTION VALUE`.

    Raises:
        InputError: The option is unknown, or does not take the value.
    """
    option, _, text = given.replace("=", " ", 1).partition(" ")
    names, text = _names(), text.strip()
    key = option.removeprefix("--").replace("-", "_")
    if key not in names:
        raise unknown("option", option, names)
    field, kind = names[key]
    if not text:
        raise InputError(f"/set {option}: needs a value, such as /set temp 0.7")
    made = dataclasses.replace(sampling, **{field: _value(option, text, kind)})
    try:
        made.params()  # refuses values out of range
    except OptionError as error:
        if error.option != SAMPLING_NAMES.get(field, field):
            raise
        raise InputError(f"/set {option} {text}: {error.must}") from None
    return made


def _value(option: str, text: str, kind: Any) -> Any:
    kinds = typing.get_args(kind) or (kind,)
    if text.lower() == "none" and type(None) in kinds:
        return None
    kind = kinds[0]
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise InputError(f"/set {option} {text}: must be on or off")
        return _SWITCH[text.lower()]
    if typing.get_origin(kind) is list:
        return [text]
    try:
        return kind(text)
    except ValueError:
        words = "a whole number" if kind is int else "a number"
        raise InputError(f"/set {option} {text}: must be {words}") from None


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    return repr(value[0]) if isinstance(value, list) and len(value) == 1 else str(value)
