"""Calibrations of this machine, kept in `plan.json` in suffice's cache folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from suffice.cache import machine
from suffice.errors import InputError
from suffice.paths import cache_dir, write_whole
from suffice.plan.costs import Residual, StepCosts

SCHEMA = 1


class Model(msgspec.Struct, frozen=True):
    """What the engine's own code asks of a model: lengths in tokens, memory in bytes.

    `growth` is the growth policy as text, fitted to the machine.
    """

    name: str
    context: int
    longest_prompt: int
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
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path()) as part:
            part.write_bytes(text + b"\n")
    except OSError as error:
        raise InputError(
            f"'{path()}' cannot be written: {error.strerror}; SUFFICE_CACHE names another folder"
        ) from None
