"""Tensors of a safetensors file, read into memory one at a time.

The `safetensors` library maps files into memory, and `StoredFile` says why that will not do; so the
header is read here, by the format's rules: 8 bytes of length, then a JSON object that has a type, a
shape and a place for each tensor, whose places together cover the rest of the file exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.stored_file import FLOATS, Array, StoredFile
from suffice.errors import InputError, shown

_DTYPES = FLOATS | {
    "F64": np.dtype(np.float64),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
}
_LENGTH_BYTES = 8  # of the header's length, which comes first
_MOST_HEADER = 1 << 25  # bytes; 100,000 tensors need half
_MOST_DIMENSIONS = 8
_MOST_SIZE = 2**62  # of a dimension and of a tensor


class StoredTensors:
    """The tensors of a file, by name, and the metadata of its header.

    `called` returns the name that a stored one has here.

    Raises:
        InputError: The file cannot be read, or is no safetensors file.
    """

    def __init__(self, path: Path, called: Callable[[str], str] = str) -> None:
        self.path = path
        self._file = StoredFile(path)
        try:
            header, self._start = _header(self._file)
            self.metadata = _metadata(header.pop("__metadata__", None))
            _check_table(header, self._file.size - self._start)
        except RecursionError:
            raise self._invalid("its header is nested too deeply") from None
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise self._invalid(" ".join(str(error).split())) from None
        self._table: dict[str, dict[str, Any]] = {
            called(name): entry for name, entry in header.items()
        }

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

    def bytes(self, name: str) -> int:
        """Return the bytes that a tensor takes."""
        begin, end = self._table[name]["data_offsets"]
        return int(end) - int(begin)

    def load(self, name: str) -> Array:
        """Read one tensor.

        Raises:
            InputError: The file cannot be read any more, or the type is unknown.
        """
        if self.dtype(name) not in _DTYPES:
            raise InputError(
                f"{self.path}: '{shown(name)}' has the unsupported type {shown(self.dtype(name))}"
            )
        dtype = _DTYPES[self.dtype(name)]
        return self._file.read_array(name, self._offset(name), self.shape(name), dtype)

    def read_rows(self, name: str, first: int, out: NDArray[np.float32]) -> bool:
        """Convert rows `first`, ... of a matrix of F32, F16 or BF16 into `out` [rows, K].

        Returns whether all are finite.

        Raises:
            InputError: The file cannot be read any more.
        """
        return self._file.read_rows(name, self._offset(name), self.dtype(name), first, out)

    def _offset(self, name: str) -> int:
        return self._start + int(self._table[name]["data_offsets"][0])

    def _invalid(self, reason: str) -> InputError:
        return InputError(f"{self.path} is not a valid safetensors file: {reason}")


def _header(file: StoredFile) -> tuple[dict[str, Any], int]:
    """Return the JSON object of a file's header, and where the data start.

    Raises:
        ValueError: It is not as the format says.
        RecursionError: It is nested too deeply.
    """
    length = int.from_bytes(file.read(0, _LENGTH_BYTES), "little")
    if not 2 <= length <= min(_MOST_HEADER, file.size - _LENGTH_BYTES):
        raise ValueError(f"its header of {length} bytes does not fit")
    text = file.read(_LENGTH_BYTES, length).decode()
    header = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_constant)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return header, _LENGTH_BYTES + length


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = sorted(name for name, _ in pairs)
        twin = next(a for a, b in pairwise(names) if a == b)
        raise ValueError(f"'{shown(twin)}' occurs twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _metadata(found: Any) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError("its '__metadata__' is not a map of texts")
    return found


def _check_table(table: dict[str, Any], data_bytes: int) -> None:
    """Check each tensor, and that together they cover the data without gaps or overlaps.

    Raises:
        ValueError: They do not.
    """
    for name, entry in table.items():
        if not _is_entry(entry):
            raise ValueError(f"the entry of '{shown(name)}' lacks a type, a shape or an offset")
        begin, end = entry["data_offsets"]
        dtype = _DTYPES.get(entry["dtype"])
        size = math.prod(entry["shape"]) * (1 if dtype is None else dtype.itemsize)
        if not 0 <= begin <= end <= data_bytes:
            raise ValueError(f"'{shown(name)}' lies at bytes {begin}..{end} of {data_bytes}")
        if dtype is not None and size != end - begin:
            raise ValueError(f"'{shown(name)}' has {end - begin} bytes; its shape needs {size}")
    at = 0
    for name in sorted(table, key=lambda each: table[each]["data_offsets"]):
        begin, end = table[name]["data_offsets"]
        if begin != at:
            raise ValueError(f"'{shown(name)}' starts at byte {begin}, not where the last one ends")
        at = end
    if at != data_bytes:
        raise ValueError(f"its tensors have {at} bytes, the file {data_bytes}")


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    return (
        isinstance(shape, list)
        and isinstance(offsets, list)
        and len(offsets) == 2
        and len(shape) <= _MOST_DIMENSIONS
        and all(type(each) is int and 0 <= each < _MOST_SIZE for each in [*shape, *offsets])
    )
