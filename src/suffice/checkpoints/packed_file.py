"""A file of packed weights: a start reads them as they lay in memory, and packs nothing.

    magic        8 bytes: the format and its version
    length       uint64: bytes of the description
    digest       16 bytes: of the description
    description  JSON: what the weights were made of, the bytes of the file, and each weight's
                 fields, in which an array is its place, type and shape
    arrays       from a page's begin on, in the order of a step; each begins a line of the cache

A file bears the time of change of the model that it was made of. So one that was changed in its
place is seen without a look at its gigabytes, and is not read, as one that is cut or of another
model is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from suffice.checkpoints import leased
from suffice.checkpoints.stored_file import StoredFile
from suffice.decoder.pages import HugePages
from suffice.errors import InputError
from suffice.quant import PackedLinear
from suffice.quant.code_layout import CodeLayout
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.packed_float8 import PackedFloat8
from suffice.quant.panels import Allocate

Weights = Mapping[str, PackedLinear | np.ndarray]
MAGIC = b"sufpack1"
LINE, PAGE = 64, 4096
_DIGEST = 16
_HEAD = struct.Struct(f"<8sQ{_DIGEST}s")
_MOST = 1 << 26  # bytes of a description; a thousand weights need a quarter of a MiB
WRITTEN = 8 << 20  # bytes at a time; no process ends within one
_BYTE = np.dtype(np.uint8)
_TYPES: dict[str, np.dtype[Any]] = {
    np.dtype(each).name: np.dtype(each)
    for each in (np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32)
}
_KINDS: dict[str, type[PackedLinear]] = {
    kind.__name__: kind for kind in (PackedLinear, PackedCodes, PackedFloat8)
}


@dataclasses.dataclass(frozen=True)
class Origin:
    """What packed weights were made of.

    `key` names all that they depend on, and `time` is when the newest of the model's files was
    changed, in seconds since 1970, even ones: no file system keeps less.
    """

    key: str
    time: int


class Unfinished:
    """A file that is being written; it has no name until all of it is on the disk.

    So nothing is left where its writer ends. One is written in a folder at a time.

    Raises:
        OSError: Another one is written, or the file system has no files without a name.
    """

    def __init__(self, path: Path, weights: Weights, origin: Origin) -> None:
        self._path, self._time = path, origin.time
        text, arrays = _described(weights, origin)
        start = _up(_HEAD.size + len(text), PAGE)
        head = _HEAD.pack(MAGIC, len(text), _digest(text)) + text
        whole = {0: np.frombuffer(head, np.uint8)}
        whole |= {start + at: array.reshape(-1).view(_BYTE) for at, array in arrays.items()}
        self._pieces = [
            (at + first, data[first : first + WRITTEN])
            for at, data in whole.items()
            for first in range(0, len(data), WRITTEN)
        ]
        self._done = 0
        last, data = self._pieces[-1]
        self._bytes = _up(last + len(data) - start, LINE) + start
        with contextlib.ExitStack() as opened:
            self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, self._folder)
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Each write waits for the disk: the end of a process would wait for all of them.
            flags = os.O_TMPFILE | os.O_WRONLY | os.O_DSYNC | os.O_CLOEXEC
            self._file = os.open(path.parent, flags, 0o666)
            opened.callback(os.close, self._file)
            os.truncate(self._file, self._bytes)
            self._opened = opened.pop_all()

    @property
    def descriptors(self) -> tuple[int, int]:
        """What a child needs to go on with the file."""
        return self._folder, self._file

    def finish(self) -> None:
        """Write what is not yet written, and give the file its name.

        Raises:
            OSError: It cannot be written, or there is a file of this name.
        """
        for at, data in self._pieces[self._done :]:
            while len(data):
                count = os.pwrite(self._file, data.data, at)
                at, data = at + count, data[count:]
            self._done += 1
        os.utime(self._file, (time.time(), self._time))
        # With a folder's descriptor the link is followed: it stands for the file without a name.
        own = f"/proc/self/fd/{self._file}"
        os.link(own, self._path, src_dir_fd=self._folder, follow_symlinks=True)

    def close(self) -> None:
        """Close the file; one without a name is gone then."""
        self._opened.close()


def read(
    path: Path, origin: Origin, allocate: Allocate | None = None
) -> dict[str, PackedLinear | np.ndarray]:
    """Return a file's weights: mapped at first, see `leased`, or read by all threads.

    They are read into one array of `allocate` if that is given, or if the file cannot be leased.

    Raises:
        InputError: There is no file, or it is damaged, cut or of another origin.
    """
    file = StoredFile(path)
    found, start = _description(file)
    if found["key"] != origin.key or found["time"] != origin.time:
        raise InputError(f"{path} was packed from another model")
    if start + found["bytes"] != file.size or int(path.stat().st_mtime) != origin.time:
        raise InputError(f"{path} was changed after it was written")
    mapped = leased.mapped(file.descriptor(), file.size) if allocate is None else None
    if mapped is None:
        memory = (allocate or HugePages())((found["bytes"],), _BYTE)
        file.read_into("packed weights", start, memory)
    else:
        memory = mapped[start:]
    return {name: _restored(each, memory) for name, each in found["weights"].items()}


def _described(weights: Weights, origin: Origin) -> tuple[bytes, dict[int, np.ndarray]]:
    """Return a file's description, and each array by its place, counted from the first one's."""
    arrays: dict[int, np.ndarray] = {}
    end = 0

    def fields(value: Any) -> Any:
        nonlocal end
        if isinstance(value, np.ndarray):
            at, end = end, _up(end + value.nbytes, LINE)
            arrays[at] = value
            return {"at": at, "type": value.dtype.name, "shape": value.shape}
        if isinstance(value, CodeLayout):
            return dataclasses.asdict(value)
        if isinstance(value, PackedLinear):
            own = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
            return {"kind": type(value).__name__} | {name: fields(own[name]) for name in own}
        assert value is None or isinstance(value, int), value
        return value

    of_weights = {name: fields(each) for name, each in weights.items()}
    found = {"key": origin.key, "time": origin.time, "bytes": end, "weights": of_weights}
    return json.dumps(found).encode(), arrays


def _description(file: StoredFile) -> tuple[dict[str, Any], int]:
    """Return a file's description and where its arrays begin.

    Raises:
        InputError: It is no file of packed weights, or its description is damaged.
    """
    head = file.read(0, _HEAD.size)
    magic, length, digest = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, b"")
    text = file.read(_HEAD.size, length) if magic == MAGIC and length <= _MOST else b""
    if not text or _digest(text) != digest:
        raise InputError(f"{file.path} is no file of packed weights, or is damaged")
    return json.loads(text), _up(_HEAD.size + length, PAGE)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_DIGEST).digest()


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _is_array(entry: Any) -> bool:
    return isinstance(entry, dict) and "at" in entry


def _restored(entry: dict[str, Any], memory: np.ndarray) -> PackedLinear | np.ndarray:
    """Return a weight whose arrays lie in `memory`."""
    if _is_array(entry):
        return _array(entry, memory)
    values: dict[str, Any] = {
        name: _array(each, memory) if _is_array(each) else each for name, each in entry.items()
    }
    kind = _KINDS[values.pop("kind")]
    if "layout" in values:
        values["layout"] = CodeLayout(**values["layout"])
    return kind(**values)


def _array(entry: dict[str, Any], memory: np.ndarray) -> np.ndarray:
    dtype = _TYPES[entry["type"]]
    data = memory[entry["at"] :][: math.prod(entry["shape"]) * dtype.itemsize]
    found: np.ndarray = data.view(dtype).reshape(entry["shape"])
    return found
