"""The header of a GGUF file: metadata and the table of tensors, as the file states them.

Every length and count is checked against the file's size before anything is made from it, and what
no model has (arrays of arrays, a million tensors) is refused. So a damaged or hostile file costs
milliseconds and little memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np

from suffice.checkpoints.stored_file import StoredFile
from suffice.errors import InputError, shown
from suffice.native import core

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
_MOST_ALIGNMENT = 1 << 16
_FIRST_BYTES = 1 << 20  # of the header read at once; then twice as many
_LEAST_KEY_BYTES = 8 + 4 + 1  # a name's length, a type, a value
_LEAST_ENTRY_BYTES = 8 + 4 + 8 + 4 + 8  # a name's length, dimensions, one of them, type, offset

# Limits far above any model: the largest vocabularies have 262144 tokens, in three arrays.
_MOST_BYTES = 1 << 28
_MOST_NAMES = 1 << 16  # keys, and tensors
_MOST_ARRAY_ENTRIES = 1 << 22  # of all arrays together
_MOST_DIMENSIONS = 4


class Entry(NamedTuple):
    """A line of the table of tensors: shape [N, K], ggml type, and offset in the data."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Header:
    """Metadata by key, the table by tensor name, and where in the file its data start."""

    metadata: dict[str, Any]
    table: dict[str, Entry]
    alignment: int
    start: int


def read_header(file: StoredFile) -> Header:
    """Read the header of a file.

    Raises:
        InputError: Not a GGUF file, cut short, damaged, or beyond the limits above.
    """
    return _Reader(file).header()


@dataclass
class _Reader:
    """Reads values one after the other; `data` is the part of the file that is in memory."""

    file: StoredFile
    data: bytearray = field(default_factory=bytearray)
    at: int = 0
    entries: int = 0  # of all arrays

    def header(self) -> Header:
        path = self.file.path
        if not self.file.size:
            raise InputError(f"{path} is empty, not a GGUF file")
        if self.file.read(0, 4) != _MAGIC:
            raise InputError(f"{path} is not a GGUF file: it does not start with 'GGUF'")
        self.at = 4
        version, tensors, keys = self.numbers("IQQ")
        if version not in _VERSIONS:
            raise InputError(
                f"{path} has GGUF version {version}; supported: 2 and 3, little-endian"
            )
        if max(tensors, keys) > _MOST_NAMES:
            self.damaged(f"it states {keys} keys and {tensors} tensors; at most {_MOST_NAMES}")
        if keys * _LEAST_KEY_BYTES + tensors * _LEAST_ENTRY_BYTES > self.file.size:
            self.unreadable()
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.string()
            if key in metadata:
                self.damaged(f"the key '{shown(key)}' occurs twice")
            metadata[key] = self.value(key)
        table: dict[str, Entry] = {}
        for _ in range(tensors):
            name = self.string()
            if name in table:
                self.damaged(f"the tensor '{shown(name)}' occurs twice")
            table[name] = self.entry(name)
        step = self.alignment(metadata)
        return Header(metadata, table, step, -(-self.at // step) * step)

    def value(self, key: str) -> Any:
        (kind,) = self.numbers("I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(key)
        return self.numbers(self.scalar(key, kind))[0]

    def array(self, key: str) -> list[Any]:
        kind, count = self.numbers("IQ")
        if kind == _ARRAY:
            self.damaged(f"the key '{shown(key)}' holds an array of arrays")
        self.entries += count
        if self.entries > _MOST_ARRAY_ENTRIES:
            self.damaged(f"its arrays have more than {_MOST_ARRAY_ENTRIES} entries")
        if kind == _STRING:
            return self.strings(count)
        return list(self.numbers(f"{count}{self.scalar(key, kind)}"))

    def scalar(self, key: str, kind: int) -> str:
        if kind not in _SCALARS:
            self.damaged(f"the value of '{shown(key)}' has the unknown type {kind}")
        return _SCALARS[kind]

    def entry(self, name: str) -> Entry:
        (dimensions,) = self.numbers("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            self.damaged(f"the tensor '{shown(name)}' has {dimensions} dimensions; 1 to 4 can be")
        *sizes, kind, offset = self.numbers(f"{dimensions}QIQ")
        return Entry(tuple(reversed(sizes)), kind, offset)

    def alignment(self, metadata: dict[str, Any]) -> int:
        step = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        power = isinstance(step, int) and not isinstance(step, bool) and step.bit_count() == 1
        if not power or not 1 <= step <= _MOST_ALIGNMENT:
            raise InputError(
                f"{self.file.path}: the GGUF key 'general.alignment' = {step!r:.60} "
                f"must be a power of two up to {_MOST_ALIGNMENT}"
            )
        return int(step)

    def numbers(self, layout: str) -> tuple[Any, ...]:
        form = struct.Struct("<" + layout)
        self.fetch(form.size)
        found = form.unpack_from(self.data, self.at)
        self.at += form.size
        return found

    def string(self) -> str:
        (length,) = self.numbers("Q")
        self.fetch(length)
        end = self.at + length
        try:
            found = self.data[self.at : end].decode()
        except UnicodeDecodeError:
            self.unreadable()
        self.at = end
        return found

    def strings(self, count: int) -> list[str]:
        """Read an array of strings natively, as many at a time as are whole in memory."""
        found: list[str] = []
        while len(found) < count:
            self.fetch(8)
            length = int.from_bytes(self.data[self.at : self.at + 8], "little")
            self.fetch(8 + length)
            try:
                more, self.at = core.read_strings(
                    np.frombuffer(self.data, np.uint8), self.at, count - len(found)
                )
            except UnicodeDecodeError:
                self.unreadable()
            found += more
        return found

    def fetch(self, count: int) -> None:
        """Have the next `count` bytes in memory."""
        end = self.at + count
        if end <= len(self.data):
            return
        if end > min(self.file.size, _MOST_BYTES):
            self.unreadable()
        wanted = min(max(end, 2 * len(self.data), _FIRST_BYTES), self.file.size)
        self.data += self.file.read(len(self.data), wanted - len(self.data))
        if end > len(self.data):  # cut since it was opened
            self.unreadable()

    def unreadable(self) -> NoReturn:
        raise InputError(
            f"{self.file.path} is damaged or cut short: its header is not readable"
        ) from None

    def damaged(self, reason: str) -> NoReturn:
        raise InputError(f"{self.file.path} is damaged: {reason}")
