"""Tensors of a safetensors file, read into memory one at a time.

The library maps files into memory: a loaded model would keep reading its file, and crash or change
if the file is cut or overwritten. Here the tensors are copied, and none is held twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from suffice.errors import InputError

__all__ = ["StoredTensors"]

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH_BYTES = 8  # of the header's length, which comes first


class StoredTensors:
    """The tensors of a file, by name, and the metadata of its header.

    Raises:
        InputError: The file cannot be read, or is no safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="pt"):  # checks the whole header
                pass
            with path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                header: dict[str, Any] = json.loads(file.read(length))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        except (SafetensorError, ValueError) as error:
            raise InputError(f"{path} is not a valid safetensors file: {error}") from None
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        self._table = header
        self._start = _LENGTH_BYTES + length

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return sorted(self._table)

    def dtype(self, name: str) -> str:
        """Return a tensor's type as the file names it, such as BF16."""
        return str(self._table[name]["dtype"])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return tuple(self._table[name]["shape"])

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor.

        Raises:
            InputError: The file cannot be read any more, or the type is unknown.
        """
        if self.dtype(name) not in _DTYPES:
            raise InputError(f"{self.path}: '{name}' has the unsupported type {self.dtype(name)}")
        tensor = torch.empty(self.shape(name), dtype=_DTYPES[self.dtype(name)])
        if not tensor.numel():
            return tensor
        begin, _ = self._table[name]["data_offsets"]
        try:
            with self.path.open("rb") as file:
                file.seek(self._start + begin)
                into: Any = tensor.view(-1).view(torch.uint8).numpy()  # typed from Python 3.12 on
                found = file.readinto(into)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from None
        if found != tensor.nbytes:
            raise InputError(f"{self.path} was cut short while '{name}' was read")
        return tensor
