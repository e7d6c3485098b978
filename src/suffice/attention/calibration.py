"""What a run over a text found out about a model, for techniques that must know it beforehand.

`suffice calibrate` writes it as JSON: which model it is of, and a part for each seam that uses it,
with the text that it comes from.

    softmax         sigma and the least value of its input, x = score - max, by layer, and the
                    centroids of `exaq_km` by number of bits, layer and query head
    attention       by technique: its options, and its threshold by layer and key/value head, null
                    for those that must stay exact

Parts that this version does not know are left alone.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suffice.errors import InputError

SCHEMA = 1


@dataclass(frozen=True)
class LayerInputs:
    """A layer's softmax inputs x = score - max: standard deviation, and the least of a window."""

    sigma: float
    least: float


@dataclass(frozen=True)
class Thresholds:
    """A technique's options, and its threshold in each layer and key/value head; None: exact."""

    options: dict[str, Any]
    by_head: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Calibration:
    """What a calibration says; made by `read`, or from what was measured."""

    name: str  # of the file
    model: str
    model_hash: str
    heads: int  # query heads of a layer
    layers: tuple[LayerInputs, ...] = field(repr=False)
    codebooks: dict[int, tuple[tuple[tuple[float, ...], ...], ...]] = field(repr=False)
    attention: dict[str, Thresholds] = field(default_factory=dict, repr=False)

    def check(self, model: str, found: str) -> None:
        """Refuse a model other than the one that was calibrated.

        Raises:
            InputError: The hash of the model is another.
        """
        if found != self.model_hash:
            raise InputError(
                f"calibration {self.name}: is of {self.model} with hash {self.model_hash}, but "
                f"{model} has hash {found}: calibrate it with `suffice calibrate -m {model}`"
            )


def beside(model: Path) -> Path:
    """Return where the calibration of a model, a folder or a .gguf file, lies if nobody says."""
    if model.suffix == ".gguf":
        return model.with_name(model.stem + ".calibration.json")
    return model / "suffice-calibration.json"


def read(path: str | os.PathLike[str]) -> Calibration:
    """Return the calibration in a file.

    Raises:
        InputError: The file cannot be read, is none of a calibration, or of another schema.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"calibration {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"calibration {path}: is no JSON of `suffice calibrate`") from None
    try:
        stored = json.loads(text)
        schema = stored["schema"]
        if schema == SCHEMA:
            return _read(Path(path).name, stored)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"calibration {path}: is no JSON of `suffice calibrate`") from None
    raise InputError(
        f"calibration {path}: has schema {schema!r}; {SCHEMA} is known: calibrate anew"
    )


def _read(name: str, stored: dict[str, Any]) -> Calibration:
    model, part = stored["model"], stored.get("softmax", {"layers": (), "codebooks": {}})
    layers = tuple(
        LayerInputs(float(layer["sigma"]), float(layer["least"])) for layer in part["layers"]
    )
    codebooks = {
        int(bits): tuple(
            tuple(tuple(float(weight) for weight in head) for head in layer) for layer in book
        )
        for bits, book in part["codebooks"].items()
    }
    attention = {
        technique: Thresholds(dict(own["options"]), _thresholds(own["thresholds"]))
        for technique, own in stored.get("attention", {}).items()
    }
    found = Calibration(
        name,
        str(model["name"]),
        str(model["hash"]),
        int(model["heads"]),
        layers,
        codebooks,
        attention,
    )
    if "softmax" in stored or not attention:
        _check(found)
    return found


def _thresholds(stored: Any) -> tuple[tuple[float | None, ...], ...]:
    """Return thresholds [L][G]; raise ValueError if they are none."""
    found = tuple(
        tuple(None if each is None else float(each) for each in layer) for layer in stored
    )
    numbers = [each for layer in found for each in layer if each is not None]
    if len({len(layer) for layer in found}) != 1 or not all(map(math.isfinite, numbers)):
        raise ValueError
    return found


def _check(found: Calibration) -> None:
    """Raise ValueError for numbers that no calibration has."""
    good = all(
        layer.sigma > 0 and math.isfinite(layer.sigma) and -math.inf < layer.least < 0
        for layer in found.layers
    )
    for bits, book in found.codebooks.items():
        heads = [weights for layer in book for weights in layer]
        good &= len(book) == len(found.layers) and len(heads) == len(book) * found.heads
        good &= all(len(weights) == 2**bits for weights in heads)
        good &= all(
            0 <= low < high < math.inf
            for weights in heads
            for low, high in itertools.pairwise(weights)
        )
    if not good or not found.layers or set(found.codebooks) != {2, 3, 4}:
        raise ValueError


def write(path: Path, stored: dict[str, Any]) -> None:
    """Write what `read` reads; a reader sees the old file or the new one, never a part.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name + "-", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(stored | {"schema": SCHEMA}, file, indent=1)
                file.write("\n")
            Path(part).replace(path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"calibration {path}: cannot be written: {error.strerror}") from None
