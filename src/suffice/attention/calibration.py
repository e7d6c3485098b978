"""Calibrations: measurements of a model on a text, for techniques that need them.

`suffice calibrate` writes one as JSON: the model's name and hash, and for each seam that uses it a
part with the text that it comes from.

    softmax         sigma and the least value of its input, x = score - max, by layer; the levels of
                    `exaq_km` by number of bits, layer and query head; C of `exaq` with `clip=fit`,
                    by tail as well
    attention       by technique: its options, and its thresholds by layer and key/value head: a
                    number, a list if there are several, null for heads that must stay exact

Parts that this version does not know are left alone. A model's own configuration may carry the
part on attention, in its field FIELD: see `suffice.checkpoints.carried`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suffice.attention.levels import TAILS, Levels
from suffice.errors import InputError
from suffice.paths import write_whole

SCHEMA = 2
FIELD = "suffice_calibration"  # of a model's config.json
NOTHING: dict[str, Any] = {"layers": (), "codebooks": {}, "clips": {}}  # no softmaxes calibrated


@dataclass(frozen=True)
class LayerInputs:
    """A layer's softmax inputs x = score - max: standard deviation, and the least in a window."""

    sigma: float
    least: float


Level = tuple[float, ...]  # the thresholds of a head; see `by_head.open_thresholds`


@dataclass(frozen=True)
class Thresholds:
    """A technique's options, and its thresholds in each layer and key/value head; None: exact."""

    options: dict[str, Any]
    by_head: tuple[tuple[Level | None, ...], ...]
    window: int | None = None  # tokens of the windows that they were found on


@dataclass(frozen=True)
class Calibration:
    """A model's calibration; made by `read`, or from measurements."""

    name: str  # of the file
    model: str
    model_hash: str
    heads: int  # query heads of a layer
    layers: tuple[LayerInputs, ...] = field(repr=False)
    codebooks: dict[int, list[list[Levels]]] = field(repr=False)
    clips: dict[str, dict[int, list[list[float]]]] = field(repr=False)
    attention: dict[str, Thresholds] = field(default_factory=dict, repr=False)
    window: int | None = None  # tokens of the windows that the softmax was calibrated on

    def check(self, model: str, found: str, adapter: str | None = None) -> None:
        """Refuse a model other than the one that was calibrated.

        `found` is its hash, and `adapter` one that is merged into it.

        Raises:
            InputError: The hash of the model is another.
        """
        if found != self.model_hash:
            merged = "" if adapter is None else f" --merge-adapter {adapter}"
            raise InputError(
                f"calibration {self.name}: is of {self.model} with hash {self.model_hash}, but "
                f"{model}{merged} has hash {found}: calibrate it with `suffice calibrate "
                f"-m {model}{merged}`"
            )


def default_path(model: Path) -> Path:
    """Return the default path of the calibration of a model, which is a folder or a .gguf file."""
    if model.suffix == ".gguf":
        return model.with_name(model.stem + ".calibration.json")
    return model / "suffice-calibration.json"


def read(path: str | os.PathLike[str]) -> Calibration:
    """Return the calibration in a file.

    Raises:
        InputError: The file cannot be read, is no calibration, or has another schema.
    """
    return known(str(path), _loaded(path))


def parts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a calibration's file, whatever its schema.

    Raises:
        InputError: The file cannot be read, or is no calibration.
    """
    stored: dict[str, Any] = _loaded(path)
    _parsed(str(path), stored)
    return stored


def known(where: str, stored: Any) -> Calibration:
    """Return the calibration that a file or a field, called `where` in errors, has stored.

    Raises:
        InputError: It is no calibration, or has another schema.
    """
    found = _parsed(where, stored)
    if found is None:
        schema = stored["schema"]
        raise InputError(
            f"calibration {where}: has schema {schema!r}; {SCHEMA} is known: calibrate again"
        )
    return found


def _loaded(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"calibration {path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _none(str(path)) from None


def _parsed(where: str, stored: Any) -> Calibration | None:
    """Return the calibration of a content, None for another schema."""
    try:
        return _read(Path(where).name, stored) if stored["schema"] == SCHEMA else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise _none(where) from None


def _none(where: str) -> InputError:
    return InputError(f"calibration {where}: is no JSON of `suffice calibrate`")


def _read(name: str, stored: dict[str, Any]) -> Calibration:
    model, part = stored["model"], stored.get("softmax", NOTHING)
    layers = tuple(
        LayerInputs(float(layer["sigma"]), float(layer["least"])) for layer in part["layers"]
    )
    codebooks = {
        int(bits): [[_levels(head) for head in layer] for layer in book]
        for bits, book in part["codebooks"].items()
    }
    clips = {
        tail: {
            int(bits): [[float(clip) for clip in layer] for layer in book]
            for bits, book in books.items()
        }
        for tail, books in part["clips"].items()
    }
    attention = {
        technique: Thresholds(dict(own["options"]), _thresholds(own["thresholds"]), _window(own))
        for technique, own in stored.get("attention", {}).items()
    }
    found = Calibration(
        name,
        str(model["name"]),
        str(model["hash"]),
        int(model["heads"]),
        layers,
        codebooks,
        clips,
        attention,
        _window(part),
    )
    if "softmax" in stored or not attention:
        _check(found)
    return found


def _window(part: dict[str, Any]) -> int | None:
    """Return the length of the windows of a part's text, in tokens; None if it is not stored."""
    window = part.get("text", {}).get("window")
    return None if window is None else int(window)


def _thresholds(stored: Any) -> tuple[tuple[Level | None, ...], ...]:
    """Return thresholds [L][G]; raise ValueError for anything else."""
    found = tuple(tuple(None if each is None else _level(each) for each in own) for own in stored)
    levels = [each for layer in found for each in layer if each is not None]
    sizes = {len(layer) for layer in found}, {len(level) for level in levels}
    if len(sizes[0]) != 1 or len(sizes[1]) > 1 or 0 in sizes[1]:
        raise ValueError
    if not all(map(math.isfinite, sum(levels, ()))):
        raise ValueError
    return found


def _level(stored: Any) -> Level:
    """Return the thresholds of a head; a number is the only one."""
    return tuple(map(float, stored)) if isinstance(stored, list) else (float(stored),)


def plain_level(level: Level | None) -> Any:
    """Return a head's thresholds as a calibration's file has them."""
    return level[0] if level and len(level) == 1 else level


def _levels(stored: dict[str, list[float]]) -> Levels:
    borders, weights = (
        tuple(float(each) for each in stored[name]) for name in ("borders", "weights")
    )
    return Levels(borders, weights)


def _check(found: Calibration) -> None:
    """Raise ValueError for impossible numbers."""
    good = all(
        layer.sigma > 0 and math.isfinite(layer.sigma) and -math.inf < layer.least < 0
        for layer in found.layers
    )
    books: list[dict[int, Any]] = [found.codebooks, *found.clips.values()]
    for book in books:
        good &= set(book) == {2, 3, 4}
        for layers in book.values():
            good &= [len(layer) for layer in layers] == [found.heads] * len(found.layers)
    for bits, layers in found.codebooks.items():
        good &= all(_sound(levels, bits) for layer in layers for levels in layer)
    for clips in found.clips.values():
        good &= all(-math.inf < c < 0 for book in clips.values() for layer in book for c in layer)
    if not good or not found.layers or set(found.clips) != set(TAILS):
        raise ValueError


def _sound(levels: Levels, bits: int) -> bool:
    """Return whether levels are possible for a head."""
    ascending = all(low < high for low, high in itertools.pairwise(levels.borders))
    sizes = len(levels.borders), len(levels.weights)
    numbers = all(map(math.isfinite, levels.borders + levels.weights))
    return (
        sizes == (2**bits - 1, 2**bits)
        and ascending
        and numbers
        and min(levels.weights) >= 0 < max(levels.weights)
    )


def write(path: Path, stored: dict[str, Any]) -> None:
    """Write what `read` reads; a reader sees the old file or the new one, never a part.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        with write_whole(path) as part:
            text = json.dumps(stored | {"schema": SCHEMA}, indent=1)
            part.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"calibration {path}: cannot be written: {error.strerror}") from None
