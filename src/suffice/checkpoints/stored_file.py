"""A file that weights are read from, natively and in parallel.

The file is read and not mapped into memory, but for what is `leased`. If another program cuts a
mapped file, the next read of it ends the process with SIGBUS; here it is an `InputError`. A loaded
model holds copies only.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError, shown
from suffice.native import core

Array = NDArray[np.generic]
Result = TypeVar("Result")

# Floating-point types that are loaded as they are stored, by their native names.
FLOATS: dict[str, np.dtype[np.generic]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in FLOATS.items()}


class StoredFile:
    """An open file; it is closed when the object goes.

    Raises:
        InputError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)
            self.size = os.fstat(self._file).st_size
        except OSError as error:
            raise self._unreadable(error) from None

    def descriptor(self) -> int:
        """Return a descriptor of the file that the caller closes.

        Raises:
            InputError: There is none left.
        """
        try:
            return os.dup(self._file)
        except OSError as error:
            raise self._unreadable(error) from None

    def read(self, offset: int, count: int) -> bytes:
        """Read up to `count` bytes.

        Raises:
            InputError: The file cannot be read.
        """
        try:
            return os.pread(self._file, count, offset)
        except OSError as error:
            raise self._unreadable(error) from None

    def read_array(
        self, name: str, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Array:
        """Read the array `name` as it is stored.

        Raises:
            InputError: The file cannot be read, or ends before the array does.
        """
        found = np.empty(shape, dtype)
        self.read_into(name, offset, found.reshape(-1).view(np.uint8))
        return found

    def read_into(self, name: str, offset: int, out: NDArray[np.uint8]) -> None:
        """Read the bytes of the array `name` that `out` has space for, by all threads.

        Raises:
            InputError: The file cannot be read, or ends before the array does.
        """
        self._checked(name, lambda: core.read_bytes(self._file, offset, out))

    def read_rows(
        self,
        name: str,
        offset: int,
        kind: str,
        first: int,
        out: NDArray[np.float32],
        paired: int = 0,
        rotated: int = 0,
    ) -> bool:
        """Decode rows of the matrix `name`, which starts at `offset`; return if all are finite.

        They are the rows `first`, `first` + 1, ... that `out` [rows, K] has space for. `kind` is a
        native type of blocks. `paired` is the number of rows of a head whose first `rotated` (0:
        all) are stored with row i of their first half before row i of their second; 0: rows are
        stored in order.

        Raises:
            InputError: The file cannot be read, or ends before the matrix does.
        """
        return self._checked(
            name, lambda: core.read_rows(self._file, offset, kind, first, out, paired, rotated)
        )

    def read_panels(
        self,
        name: str,
        offset: int,
        kind: str,
        shape: tuple[int, int],
        out: NDArray[np.uint8],
        paired: int = 0,
        rotated: int = 0,
    ) -> bool:
        """Read the matrix `name` [N, K] as panels; return if its scales and minima are finite.

        `kind` is a native type of codes, and `out` uint8 [N/16, bytes] has its layout. The rest is
        as in `read_rows`.

        Raises:
            InputError: The file cannot be read, or ends before the matrix does.
        """
        into = out.reshape(-1)
        return self._checked(
            name, lambda: core.read_panels(self._file, offset, kind, *shape, into, paired, rotated)
        )

    def _checked(self, name: str, read: Callable[[], Result]) -> Result:
        try:
            return read()
        except EOFError:
            raise InputError(f"{self.path} was cut short while '{shown(name)}' was read") from None
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> InputError:
        return InputError(f"{self.path} cannot be read: {error.strerror or error}")


def unpack_words(words: Array, bits: int, places: Sequence[int] = ()) -> NDArray[np.uint8]:
    """Return the codes of 2, 3, 4 or 8 bits in words int32 [N, W], which may have any strides.

    They are [N, 32 W / bits], from the lowest bit of a row's first word on; codes of 3 bits cross
    words. With `places` a word has a code for each of 32 / bits rows, row i at place i from its
    lowest bits on; they are [32 N / bits, W].
    """
    rows, count = words.shape
    each = 32 // bits
    shape = (rows * each, count) if places else (rows, 32 * count // bits)
    codes = np.empty(shape, np.uint8)
    core.unpack_words(words.view(np.int32), bits, list(places), codes.reshape(-1))
    return codes


def is_finite(values: Array) -> bool:
    """Return whether a contiguous array of float32, float16 or bfloat16 has no NaN or infinity."""
    return bool(core.all_finite(_NAMES[values.dtype], values.reshape(-1).view(np.uint8)))
