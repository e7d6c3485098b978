"""A Hugging Face directory: JSON files and weights in safetensors, in one file or in shards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from suffice.errors import InputError
from suffice.models.stored_tensors import StoredTensors

__all__ = ["Safetensors", "read_json"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        InputError: No such file, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


class Safetensors:
    """The weights of a directory: `model.safetensors`, or the shards that its index lists.

    Raises:
        InputError: No weights in safetensors, a missing or damaged file, an unsupported type.
    """

    def __init__(self, folder: Path) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        self._files: dict[str, StoredTensors] = {}
        for file, names in _shards(folder).items():
            handle = StoredTensors(folder / file)
            stored = set(handle.names)
            for name in sorted(names if names is not None else stored):
                if name not in stored:
                    raise InputError(f"{folder / file} lacks the weight '{name}' of the index")
                if handle.dtype(name) not in _DTYPES:
                    raise InputError(
                        f"{folder / file}: weight '{name}' has type {handle.dtype(name)}; "
                        f"supported: {', '.join(_DTYPES)}"
                    )
                self._shapes[name] = handle.shape(name)
                self._dtypes[name] = _DTYPES[handle.dtype(name)]
                self._files[name] = handle

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every stored weight, by its stored name."""
        return self._shapes

    def dtype(self, name: str) -> str:
        """Return the name of a weight's type."""
        return self._dtypes[name]

    def stored(self, name: str) -> tuple[str, int]:
        """Return a weight's type and bytes."""
        dtype = self._dtypes[name]
        return dtype, math.prod(self._shapes[name]) * _BYTES[dtype]

    @property
    def label(self) -> None:
        """None: a directory has no name for its storage as a whole."""

    def load(self, name: str) -> torch.Tensor:
        """Read one weight in its stored type."""
        return self._files[name].load(name)


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
        names = shards.setdefault(str(file), set())
        assert names is not None
        names.add(name)
    return shards
