"""Calibrations of this machine, kept in `plan.json` in suffice's cache folder.

What an unfinished one has measured is in a file of its own there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from suffice import __version__
from suffice.cache import machine
from suffice.errors import InputError
from suffice.paths import cache_dir, write_whole
from suffice.plan.costs import Residual, StepCosts

SCHEMA = 1
T = TypeVar("T")


class Model(msgspec.Struct, frozen=True):
    """What the engine's own code asks of a model: lengths in tokens, memory in bytes.

    `growth` is the growth policy as text, fitted to the machine.
    """

    name: str
    context: int
    tile_rows: int
    known_rows: int
    layers: int
    growth: str
    shares_prompts: bool
    shares_answers: bool


class Calibration(msgspec.Struct, frozen=True):
    """Measured costs of a model with some options, on one machine.

    Attributes:
        options: The engine's options that change costs, as text.
        bandwidth: Bytes a second that all cores read together, and `bandwidth_one` that one does.
        cores: Of the machine; the costs are of `costs.hardware.cores` of them.
        residual: What the fit leaves of the measured calls; `overhead` of the steps around them.
    """

    cpu: str
    isa: str
    options: str
    measured: str
    cores: int
    bandwidth: float
    bandwidth_one: float
    model: Model
    costs: StepCosts
    residual: Residual
    overhead: Residual

    @property
    def threads(self) -> int:
        """The threads that were measured."""
        return round(self.costs.hardware.cores)


class _File(msgspec.Struct):
    schema: int
    calibrations: list[Calibration]


def path() -> Path:
    """Return the path of the file, which need not exist."""
    return cache_dir() / "plan.json"


def read() -> list[Calibration]:
    """Return all calibrations; none if there is no file, or one of another schema.

    Raises:
        InputError: The file cannot be read, or holds something else.
    """
    try:
        data = path().read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"'{path()}' cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(data)
        if found["schema"] != SCHEMA:
            return []
        return msgspec.convert(found, _File).calibrations
    except (msgspec.MsgspecError, KeyError, TypeError):
        raise InputError(
            f"'{path()}' holds no calibrations: measure again with `suffice plan --calibrate` or "
            "delete the file"
        ) from None


def find(options: str, threads: int, isa: str) -> Calibration | None:
    """Return this machine's calibration of some options that has the nearest number of threads.

    None if there is none. Of two that are as near, it is the one with more threads.

    Raises:
        InputError: See `read`.
    """
    cpu = machine.cpu_name()
    own = [each for each in read() if (each.cpu, each.isa, each.options) == (cpu, isa, options)]
    return min(own, key=lambda each: (abs(each.threads - threads), -each.threads), default=None)


def save(calibration: Calibration) -> None:
    """Keep a calibration, in place of one of the same machine, options and threads.

    Raises:
        InputError: The file cannot be written, or holds something else.
    """

    def place(each: Calibration) -> tuple[str, str, str, int]:
        return each.cpu, each.isa, each.options, each.threads

    kept = [each for each in read() if place(each) != place(calibration)]
    text = msgspec.json.format(msgspec.json.encode(_File(SCHEMA, [*kept, calibration])), indent=1)
    _write(path(), text + b"\n")


def unfinished(options: str, threads: int, isa: str) -> Path:
    """Return the file of an unfinished calibration of this machine, which need not exist."""
    place = f"{SCHEMA} {__version__} {machine.cpu_name()} {isa} {options} {threads}"
    name = hashlib.blake2b(place.encode(), digest_size=8).hexdigest()
    return cache_dir() / f"plan-unfinished-{name}.json"


def parts(path: Path, kind: type[T]) -> list[T]:
    """Return the parts that an unfinished calibration has measured; none if nothing is kept.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[kind])  # type: ignore[valid-type]
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return []  # a file that is damaged is measured again
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None


def keep_parts(path: Path, found: Sequence[object]) -> None:
    """Keep the parts that are measured so far.

    Raises:
        InputError: The file cannot be written.
    """
    _write(path, msgspec.json.encode(found))


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be written: {error.strerror}; SUFFICE_CACHE names another folder"
        ) from None
