"""The GGUF container: metadata, a table of tensors, and their blocks.

The `gguf` package's own reader makes an array object of every token of the vocabulary, which takes
20 s for 262144 of them; this one takes 0.2 s. The package still dequantizes.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suffice.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["GGUF", "TensorInfo", "file_type", "type_name"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_BLOCK_VALUES = 1 << 21  # dequantized at a time


class TensorInfo(NamedTuple):
    """A stored tensor: its shape [N, K], ggml type, and place in the file in bytes."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    size: int


@dataclass(frozen=True)
class GGUF:
    """An opened file: metadata by key, and the table of tensors by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    data: mmap.mmap

    @classmethod
    def open(cls, path: Path) -> GGUF:
        """Read the metadata and the table of a file.

        Raises:
            InputError: Not a GGUF file, cut short, or with tensors of an unsupported type.
        """
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError:
            raise InputError(f"{path} is empty, not a GGUF file") from None
        if data[:4] != _MAGIC:
            raise InputError(f"{path} is not a GGUF file: it does not start with 'GGUF'")
        try:
            metadata, table, start = _read_header(path, data)
        except (struct.error, UnicodeDecodeError, OverflowError, MemoryError):
            raise InputError(
                f"{path} is damaged or cut short: its header is not readable"
            ) from None
        tensors = {name: _place(path, name, entry, start, len(data)) for name, entry in table}
        return cls(path, metadata, tensors, data)

    def load(self, name: str) -> torch.Tensor:
        """Dequantize one tensor to float32 [N, K], a block of rows at a time."""
        import torch  # bridge

        info = self.tensors[name]
        stored = np.frombuffer(self.data, np.uint8, info.size, info.offset)
        rows = stored.reshape(-1, info.size // math.prod(info.shape[:-1]))
        values = np.empty((len(rows), info.shape[-1]), np.float32)
        decode = _decoder(info.kind)
        step = max(1, _BLOCK_VALUES // info.shape[-1])
        for row in range(0, len(rows), step):
            values[row : row + step] = decode(rows[row : row + step])
        return torch.from_numpy(values).reshape(info.shape)


def _decoder(kind: int) -> Callable[[Any], Any]:
    """Return the function from stored bytes [N, bytes] to float32 [N, K].

    `gguf.dequantize` itself converts 16 rows at a time, 20 times slower than a block of rows.
    """
    import gguf

    name = gguf.GGMLQuantizationType(kind).name
    if name in ("F32", "F16"):
        return lambda rows: gguf.dequantize(rows, gguf.GGMLQuantizationType(kind))
    return getattr(gguf.quants, name).dequantize_rows  # type: ignore[no-any-return]


def _read_header(
    path: Path, data: mmap.mmap
) -> tuple[dict[str, Any], list[tuple[str, tuple[int, int, tuple[int, ...]]]], int]:
    """Return metadata, (name, (type, offset, shape)) of each tensor, and the start of the data."""
    version, tensor_count, key_count = struct.unpack_from("<IQQ", data, 4)
    if version not in _VERSIONS:
        raise InputError(f"{path} has GGUF version {version}; supported: 2 and 3, little-endian")
    at, metadata = 24, {}
    for _ in range(key_count):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = _value(path, data, at + 4, kind)
    table = []
    for _ in range(tensor_count):
        name, at = _string(data, at)
        (dims,) = struct.unpack_from("<I", data, at)
        *sizes, kind, offset = struct.unpack_from(f"<{dims}QIQ", data, at + 4)
        at += 16 + 8 * dims
        table.append((name, (kind, offset, tuple(reversed(sizes)))))
    step = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(step, int) or step < 1:
        raise InputError(
            f"{path}: the GGUF key 'general.alignment' = {step!r:.60} must be positive"
        )
    return metadata, table, -(-at // step) * step


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise struct.error
    return data[at + 8 : end].decode(), end


def _value(path: Path, data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind in _SCALARS:
        layout = struct.Struct("<" + _SCALARS[kind])
        return layout.unpack_from(data, at)[0], at + layout.size
    if kind != _ARRAY:
        raise InputError(f"{path} is damaged: a metadata value has the unknown type {kind}")
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind in _SCALARS:
        layout = struct.Struct(f"<{count}{_SCALARS[kind]}")
        return list(layout.unpack_from(data, at)), at + layout.size
    values = []
    for _ in range(count):
        value, at = _value(path, data, at, kind)
        values.append(value)
    return values, at


def _place(
    path: Path, name: str, entry: tuple[int, int, tuple[int, ...]], start: int, end: int
) -> TensorInfo:
    import gguf

    kind, offset, shape = entry
    if kind not in _types():
        known = {int(each): each.name for each in gguf.GGMLQuantizationType}
        raise InputError(
            f"{path}: tensor '{name}' has the unsupported ggml type {known.get(kind, kind)}; "
            f"supported: {', '.join(sorted(_types().values()))}: take another file of the model, "
            "or make one from its float weights: llama-quantize MODEL-F16.gguf OUT.gguf Q8_0"
        )
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    if not shape or shape[-1] % block:
        raise InputError(f"{path}: tensor '{name}' of shape {list(shape)} has no whole blocks")
    size = math.prod(shape) // block * block_bytes
    if start + offset + size > end:
        raise InputError(
            f"{path} is cut short: tensor '{name}' ends at byte {start + offset + size} of {end}"
        )
    return TensorInfo(shape, kind, start + offset, size)


@cache
def _types() -> dict[int, str]:
    """Return the ggml types that can be dequantized, and their names."""
    import gguf

    kinds = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    return {
        kind: name
        for kind, name in kinds.items()
        if name in ("F32", "F16") or hasattr(gguf.quants, name)
    }


def type_name(kind: int) -> str:
    """Return the name of a ggml type."""
    return _types()[kind]


def file_type(number: object) -> str | None:
    """Return the name of a file's type, such as Q4_K_M; None if llama.cpp has no such number."""
    import gguf

    for each in gguf.LlamaFileType:
        if each == number:
            return str(each.name.removeprefix("MOSTLY_").removeprefix("ALL_"))
    return None
