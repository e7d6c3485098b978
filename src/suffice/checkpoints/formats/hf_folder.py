"""A Hugging Face directory: JSON files and weights in safetensors, in one file or in shards."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.matching import check_finite, not_finite
from suffice.checkpoints.stored_file import Array
from suffice.checkpoints.stored_tensors import StoredTensors
from suffice.errors import InputError, shown

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_MOST_JSON = 1 << 25  # bytes


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        InputError: No such file, or not a JSON object.
    """
    found: dict[str, Any] = _read(path, dict, "object")
    return found


def read_list(path: Path) -> list[Any]:
    """Read a JSON list from a file.

    Raises:
        InputError: No such file, or not a JSON list.
    """
    found: list[Any] = _read(path, list, "list")
    return found


def _read(path: Path, kind: type, called: str) -> Any:
    try:
        size = path.stat().st_size
        value = json.loads(path.read_text(encoding="utf-8")) if size <= _MOST_JSON else None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path} is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if size > _MOST_JSON:
        raise InputError(f"{path} has {size} bytes; at most {_MOST_JSON} can be")
    if not isinstance(value, kind):
        raise InputError(f"{path} must hold a JSON {called}, not a {type(value).__name__}")
    return value


class FolderTensors:
    """The tensors of a directory: `model.safetensors`, or the shards that its index lists.

    Each of `called` has patterns of stored names, each with what a name becomes, one after the
    other.

    Raises:
        InputError: No weights in safetensors, or a missing or damaged file.
    """

    def __init__(self, folder: Path, *called: Sequence[tuple[str, str]]) -> None:
        self.folder = folder
        self.files = _weights(folder, partial(_name, called))
        self.types = {name: file.dtype(name) for name, file in self.files.items()}

    @property
    def where(self) -> str:
        """The directory."""
        return str(self.folder)

    def leave_out(self, names: Iterable[str]) -> None:
        """Have some of the tensors no longer."""
        for name in names:
            del self.files[name], self.types[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self.files[name].shape(name)

    def bytes(self, name: str) -> int:
        """Return the bytes that a tensor takes."""
        return self.files[name].bytes(name)

    def load(self, name: str) -> Array:
        """Read a tensor as it is stored.

        Raises:
            InputError: The file cannot be read any more.
        """
        return self.files[name].load(name)


class Safetensors:
    """The float weights of a directory; `names`: some of its tensors (None: all)."""

    def __init__(self, tensors: FolderTensors, names: Collection[str] | None = None) -> None:
        self._folder = tensors.folder
        own = tensors.types if names is None else names
        self._files = {name: tensors.files[name] for name in own}
        self._types = {name: tensors.types[name] for name in own}
        self._shapes = {name: file.shape(name) for name, file in self._files.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every stored weight, by its stored name."""
        return self._shapes

    def dtype(self, name: str) -> str:
        """Return the name of a weight's type.

        Raises:
            InputError: It is not supported.
        """
        kind = self._types[name]
        if kind not in _DTYPES:
            raise InputError(
                f"{self._files[name].path}: weight '{shown(name)}' has type {shown(kind)}; "
                f"supported: {', '.join(_DTYPES)}"
            )
        return _DTYPES[kind]

    def in_codes(self, name: str) -> bool:
        """Return whether a weight is stored in codes: none is."""
        return False

    def codes(self, name: str) -> NoReturn:
        """Return no codes; all weights are floats."""
        raise AssertionError(name)

    def stored(self, name: str) -> tuple[str, int]:
        """Return a weight's type and bytes."""
        dtype = self.dtype(name)
        return dtype, math.prod(self._shapes[name]) * _BYTES[dtype]

    @property
    def label(self) -> None:
        """None: a directory has no name for its storage as a whole."""

    def load(self, name: str) -> Array:
        """Read one weight in its stored type.

        Raises:
            InputError: The file cannot be read any more, or an entry is not finite.
        """
        found = self._files[name].load(name)
        check_finite(self._folder, name, found)
        return found

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Convert rows `first`, ... of a matrix into `out` [rows, K].

        Raises:
            InputError: The file cannot be read any more, or an entry is not finite.
        """
        if not self._files[name].read_rows(name, first, out):
            raise not_finite(self._folder, name)


def _name(called: Sequence[Sequence[tuple[str, str]]], stored: str) -> str:
    """Return what a stored name becomes by the first pattern of each that matches all of it."""
    for patterns in called:
        matches = ((re.fullmatch(pattern, stored), to) for pattern, to in patterns)
        stored = next((match.expand(to) for match, to in matches if match), stored)
    return stored


def _weights(folder: Path, called: Callable[[str], str]) -> dict[str, StoredTensors]:
    """Return the file of each weight."""
    found: dict[str, StoredTensors] = {}
    for file, names in _shards(folder).items():
        handle = StoredTensors(folder / file, called)
        stored = set(handle.names)
        for name in sorted(stored if names is None else map(called, names)):
            if name not in stored:
                raise InputError(f"{folder / file} lacks the weight '{shown(name)}' of the index")
            found[name] = handle
    return found


def _shards(folder: Path) -> dict[str, set[str] | None]:
    """Return the weight files, and for each the names that an index lists for it (None: all)."""
    if (folder / _SINGLE).is_file():
        return {_SINGLE: None}
    if not (folder / _INDEX).is_file():
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
            raise InputError(
                f"{folder} has weights in PyTorch's pickle format only; convert them to "
                f"safetensors (save_pretrained of transformers does)"
            )
        raise InputError(f"{folder} has no weights: neither {_SINGLE} nor {_INDEX}")
    index = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise InputError(f"{folder / _INDEX} has no 'weight_map'")
    shards: dict[str, set[str] | None] = {}
    for name, file in index.items():
        if not _is_plain(file):
            raise InputError(
                f"{folder / _INDEX}: weight '{shown(name)}' is in {shown(repr(file))}, which must "
                "be the name of a .safetensors file of this folder"
            )
        names = shards.setdefault(file, set())
        assert names is not None
        names.add(name)
    return shards


def _is_plain(file: object) -> bool:
    """Return whether a value is the name of a file, not a path that may lead elsewhere."""
    return (
        isinstance(file, str)
        and file.isprintable()
        and file.endswith(".safetensors")
        and not {"/", "\\"} & set(file)
    )
