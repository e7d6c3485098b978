"""A calibration that a model carries in its own configuration: a field of its config.json.

Only thresholds of attention are carried, a few numbers for each head. Codebooks of softmaxes are
more than a hundred times as large, and stay in files. Nothing else in the configuration changes,
not a space: without the field it has the bytes that it had before.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from suffice.attention.calibration import FIELD, SCHEMA, Calibration, known
from suffice.errors import InputError
from suffice.paths import write_whole

_CONFIG = "config.json"
_BLANK = re.compile(r"[ \t\r\n]*")
_read_value = json.JSONDecoder().raw_decode


def carried(folder: Path) -> Calibration | None:
    """Return the calibration that the model in a folder carries, if it carries one.

    Raises:
        InputError: Its configuration cannot be read, or the field is no calibration.
    """
    stored = stored_in(folder)
    return None if stored is None else known(str(folder / _CONFIG), stored)


def stored_in(folder: Path) -> Any:
    """Return what the field holds; None if there is none.

    Raises:
        InputError: The configuration cannot be read.
    """
    from suffice.checkpoints.formats.hf_folder import read_json

    return read_json(folder / _CONFIG).get(FIELD)


def carry(folder: Path, stored: dict[str, Any]) -> None:
    """Put a calibration into the configuration of the model in a folder, in place of an older one.

    A reader sees the old file or the new one, never a part. Facts on who made it stay out.

    Raises:
        InputError: The configuration cannot be read or written.
    """
    stored_in(folder)  # refuses what is no configuration
    path = folder / _CONFIG
    text = without(path.read_bytes()).decode()
    attention = {
        name: {key: each for key, each in part.items() if key != "made"}
        for name, part in stored["attention"].items()
    }
    field = {"schema": SCHEMA, "model": stored["model"], "attention": attention}
    _, begin, end = _members(text)[-1]
    blank = text[len(text[:begin].rstrip()) : begin]
    new = f",{blank}{json.dumps(FIELD)}: {json.dumps(field)}"
    try:
        with write_whole(path) as part:
            part.write_bytes((text[:end] + new + text[end:]).encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def without(raw: bytes) -> bytes:
    """Return a JSON object's bytes without the field, as they were before it was put there."""
    if FIELD.encode() not in raw:
        return raw
    try:
        text = raw.decode()
        json.loads(text)
        members = _members(text)
    except (ValueError, RecursionError, IndexError):
        return raw  # no model's configuration: whoever reads it says so
    names = [name for name, _, _ in members]
    if FIELD not in names:
        return raw
    at = names.index(FIELD)
    begin, end = members[at][1:]
    if at:
        begin = members[at - 1][2]
    elif len(members) > 1:
        end = members[1][1]
    return (text[:begin] + text[end:]).encode()


def _members(text: str) -> list[tuple[str, int, int]]:
    """Return the members of a JSON object: name, and where the name begins and the value ends."""
    found = []
    at = _after_blank(text, _after_blank(text, 0) + 1)
    while text[at] != "}":
        begin = at
        name, at = _read_value(text, at)
        _, at = _read_value(text, _after_blank(text, _after_blank(text, at) + 1))
        found.append((name, begin, at))
        at = _after_blank(text, at)
        if text[at] == ",":
            at = _after_blank(text, at + 1)
    return found


def _after_blank(text: str, at: int) -> int:
    """Return where the next character lies that is no blank."""
    match = _BLANK.match(text, at)
    return match.end() if match else at
