"""The GGUF container: metadata, a table of tensors, and their blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.formats.gguf_header import Entry, Header, read_header
from suffice.checkpoints.formats.gguf_types import DECODED, KNOWN, TYPES
from suffice.checkpoints.stored_file import FLOATS, Array, StoredFile, is_finite
from suffice.errors import InputError, shown
from suffice.pull.parts import parts_of

_MOST_SIZE = 2**31 - 1  # of a dimension
_BLOCK_VALUES = 1 << 20  # that the `gguf` package decodes at a time


class TensorInfo(NamedTuple):
    """A stored tensor: its shape [N, K], ggml type, and place in bytes in a part of the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    size: int
    part: int = 0

    @property
    def type(self) -> str:
        """The name of its ggml type."""
        return TYPES[self.kind].name

    @property
    def columns(self) -> int:
        """Values of a row, the last dimension."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """The product of all other dimensions."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True)
class GGUF:
    """An opened file: metadata by key, and the table of tensors by name.

    `parts` are the files that it is split into, the first with the metadata; or it alone.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    parts: tuple[StoredFile, ...]

    @classmethod
    def open(cls, path: Path) -> GGUF:
        """Read the metadata and the table of a file; of a split one, all parts by the first.

        Raises:
            InputError: Not a GGUF file, damaged, cut short, with tensors of an unsupported type, or
                a part that is not the first or whose others are missing.
        """
        first = StoredFile(path)
        header = read_header(first)
        parts, headers = [first], [header]
        for other in _other_parts(path, header.metadata):
            parts.append(StoredFile(other))
            headers.append(read_header(parts[-1]))
            _check_part(other, headers[-1].metadata, len(parts) - 1, header.metadata)
        tensors: dict[str, TensorInfo] = {}
        for at, (file, own) in enumerate(zip(parts, headers, strict=True)):
            placed = {name: _place(file, own, name)._replace(part=at) for name in own.table}
            _check_apart(file.path, placed)
            if twice := placed.keys() & tensors.keys():
                raise InputError(f"{file.path}: '{shown(min(twice))}' is in an earlier part, too")
            tensors |= placed
        return cls(path, header.metadata, tensors, tuple(parts))

    def load(self, name: str) -> Array:
        """Read one tensor, decoded to float32 if it is stored in blocks."""
        info = self.tensors[name]
        if info.type in FLOATS:
            return self.parts[info.part].read_array(
                name, info.offset, info.shape, FLOATS[info.type]
            )
        values = np.empty((info.rows, info.columns), np.float32)
        self.read_rows(name, 0, values)
        return values.reshape(info.shape)

    def read_rows(
        self, name: str, first: int, out: NDArray[np.float32], paired: int = 0, rotated: int = 0
    ) -> bool:
        """Decode rows `first`, ... of a tensor into `out` [rows, K]; return if all are finite.

        `paired` and `rotated` are described in `StoredFile.read_rows`.
        """
        info = self.tensors[name]
        if info.kind in DECODED:
            file = self.parts[info.part]
            return file.read_rows(name, info.offset, info.type, first, out, paired, rotated)
        step = max(1, _BLOCK_VALUES // info.columns)
        for row in range(0, len(out), step):
            part = out[row : row + step]
            part[:] = self._by_package(name, first + row, len(part), paired, rotated or paired)
        return is_finite(out)

    def read_panels(
        self, name: str, out: NDArray[np.uint8], paired: int = 0, rotated: int = 0
    ) -> bool:
        """Read a matrix in codes as panels `out`; return if its scales and minima are finite.

        `paired` and `rotated` are described in `StoredFile.read_rows`.
        """
        info = self.tensors[name]
        shape = info.rows, info.columns
        file = self.parts[info.part]
        return file.read_panels(name, info.offset, info.type, shape, out, paired, rotated)

    def _by_package(self, name: str, first: int, count: int, paired: int, rotated: int) -> Any:
        """Decode some rows of places in a grid by the `gguf` package."""
        import gguf

        info = self.tensors[name]
        row_bytes = info.size // info.rows
        last = first + count
        if paired:  # whole heads
            start, end = first // paired * paired, -(-last // paired) * paired
        else:
            start, end = first, last
        where = info.offset + start * row_bytes
        file, kind = self.parts[info.part], np.dtype(np.uint8)
        stored = file.read_array(name, where, (end - start, row_bytes), kind)
        decoder = getattr(gguf.quants, info.type)
        decoder.init_grid()
        # Overflow gives infinities, which are refused. `gguf.dequantize` itself converts 16 rows
        # at a time, 20 times slower than all of them.
        with np.errstate(all="ignore"):
            values = decoder.dequantize_rows(stored)
        if paired:
            values = unpaired(values, paired, rotated)
        return values[first - start : last - start]


def _other_parts(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """Return the other files of a file that says that it is split.

    Raises:
        InputError: It is not the first of them, has no name from which theirs follow, or some are
            missing.
    """
    count = metadata.get("split.count") or 1
    if count == 1:
        return []
    names = parts_of(path.name)
    if len(names) != count:
        raise InputError(
            f"{path} is one of {count!s:.20} parts of a split GGUF file, whose names must end with "
            f"-00001-of-{count!s:.20}.gguf, each with five digits"
        )
    if path.name != names[0]:
        raise InputError(f"{path} is a part of a split GGUF file: give its first, {names[0]}")
    others = [path.with_name(name) for name in names[1:]]
    if missing := [each.name for each in others if not each.exists()]:
        raise InputError(f"{path} is split into {count} parts; missing: {', '.join(missing[:9])}")
    return others


def _check_part(
    path: Path, metadata: Mapping[str, Any], number: int, first: Mapping[str, Any]
) -> None:
    """Refuse a file that is not the part of this number, from 0 on, of a first one's.

    Raises:
        InputError: It is another one's, or whole.
    """
    found = metadata.get("split.no"), metadata.get("split.count")
    if found != (number, first["split.count"]):
        raise InputError(
            f"{path} says that it is part {found[0]!s:.20} of {found[1]!s:.20}, counted from 0; "
            f"it must be {number} of {first['split.count']}"
        )


def unpaired(values: Array, head: int, rotated: int) -> Array:
    """Return rows, `head` of each, whose first `rotated` are stored in pairs, in our order."""
    heads = values.reshape(-1, head, *values.shape[1:]).copy()
    pairs = heads[:, :rotated].reshape(len(heads), rotated // 2, 2, *values.shape[1:])
    heads[:, :rotated] = pairs.swapaxes(1, 2).reshape(len(heads), rotated, *values.shape[1:])
    return np.asarray(heads.reshape(values.shape))


def _place(file: StoredFile, header: Header, name: str) -> TensorInfo:
    """Return where a tensor lies.

    Raises:
        InputError: Its type or shape is not supported, or its bytes are not all in the file.
    """
    entry = header.table[name]
    what = f"tensor '{shown(name)}'"
    if entry.kind not in TYPES:
        names = sorted(block.name for block in TYPES.values())
        raise InputError(
            f"{file.path}: {what} has the unsupported ggml type "
            f"{KNOWN.get(entry.kind, entry.kind)}; "
            f"supported: {', '.join(names)}: take another file of the model, "
            "or make one from its float weights: llama-quantize MODEL-F16.gguf OUT.gguf Q8_0"
        )
    size = _size(entry)
    if size is None:
        raise InputError(f"{file.path}: {what} of shape {list(entry.shape)} has no whole blocks")
    if entry.offset % header.alignment:
        raise InputError(
            f"{file.path} is damaged: {what} starts at byte {entry.offset} of the data, "
            f"not at a multiple of {header.alignment}"
        )
    start = header.start + entry.offset
    if start + size > file.size:
        raise InputError(
            f"{file.path} is cut short: {what} ends at byte {start + size} of {file.size}"
        )
    return TensorInfo(entry.shape, entry.kind, start, size)


def _size(entry: Entry) -> int | None:
    """Return a tensor's bytes; None if its shape cannot be."""
    _, values, block_bytes = TYPES[entry.kind]
    if not all(1 <= size <= _MOST_SIZE for size in entry.shape) or entry.shape[-1] % values:
        return None
    return math.prod(entry.shape) // values * block_bytes


def _check_apart(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse tensors that share bytes of the file."""
    order = sorted(tensors, key=lambda name: tensors[name].offset)
    for one, other in pairwise(order):
        if tensors[one].offset + tensors[one].size > tensors[other].offset:
            raise InputError(
                f"{path} is damaged: the tensors '{shown(one)}' and '{shown(other)}' overlap"
            )
