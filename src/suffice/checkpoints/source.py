"""Weights of a checkpoint that are still in their files, and where they are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.stored_file import Array
from suffice.quant.code_layout import CodeLayout
from suffice.quant.packed_float8 import StoredFloat8

_BLOCK_VALUES = 1 << 19  # converted at a time: 2 MiB in float32, which the caches hold
_PANEL_ROWS = 16  # blocks of rows are whole panels of packed weights


@dataclass(frozen=True)
class UnreadCodes:
    """A matrix [N, K] in codes that is still in its file.

    `levels` uint8 [2^bits] are the levels plus 128. `fill` writes panels uint8
    [N/16, layout.panel_bytes(K)], and raises `InputError` for a damaged file, or scales that are
    not finite. `order` int32 [K] is there if column k of the codes belongs to input order[k].
    `some`, if it is there, returns what fills panels of some of the rows.
    """

    layout: CodeLayout
    levels: NDArray[np.uint8]
    fill: Callable[[NDArray[np.uint8]], None]
    order: NDArray[np.int32] | None = None
    some: Callable[[slice], Callable[[NDArray[np.uint8]], None]] | None = None


class Source(Protocol):
    """A source of stored weights."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every stored weight, by its stored name."""
        ...

    def dtype(self, name: str) -> str:
        """Return the smallest type that holds a stored weight: float32, float16 or bfloat16.

        Blocks of 8 bits and fewer count as bfloat16.

        Raises:
            InputError: It has a type that cannot be read.
        """
        ...

    def load(self, name: str) -> Array:
        """Read one weight in a floating-point type.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        ...

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Convert rows `first`, `first` + 1, ... of a matrix into all rows of `out` [rows, K].

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        ...

    def in_codes(self, name: str) -> bool:
        """Return whether a matrix is stored in codes that become panels."""
        ...

    def codes(self, name: str) -> UnreadCodes | StoredFloat8:
        """Return a matrix that is stored in codes.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        ...

    def stored(self, name: str) -> tuple[str, int]:
        """Return the type in which a weight is stored, such as Q4_1, and its bytes."""
        ...

    @property
    def label(self) -> str | None:
        """The file's name for its storage as a whole, such as Q4_K_M; None if it has none."""
        ...


@dataclass(frozen=True)
class Weight:
    """A stored weight that has not been read yet.

    `dtype` is the smallest type that holds its values; blocks of 8 bits and fewer count as
    bfloat16, though `load` returns them in float32. `offset` is added when it is read; `change`
    makes a vector from what is stored, in float32.
    """

    shape: tuple[int, ...]
    dtype: str
    source: Source
    stored: str  # its name in the source
    offset: float = 0.0
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None

    def load(self) -> Array:
        """Read all of it.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        found = self.source.load(self.stored)
        if self.change is not None:
            return self.change(found.astype(np.float32))
        return found.astype(np.float32) + np.float32(self.offset) if self.offset else found

    def codes(self) -> UnreadCodes | StoredFloat8 | None:
        """Return the codes of a matrix that is stored in codes or 8-bit floats; else None.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        return self.source.codes(self.stored) if self.source.in_codes(self.stored) else None

    def blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Read a matrix [N, K] as float32, a block of rows at a time: its first row, and the block.

        Each block but the last has the same number of rows, a multiple of 16. All share their
        memory, so a block is valid until the next one is asked for.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        rows, columns = self.shape
        step = max(_BLOCK_VALUES // columns // _PANEL_ROWS, 1) * _PANEL_ROWS
        memory = np.empty((min(step, rows), columns), np.float32)
        for first in range(0, rows, step):
            yield first, self.rows(first, memory[: rows - first])

    def rows(self, first: int, out: NDArray[np.float32]) -> NDArray[np.float32]:
        """Fill `out` [rows, K] with a matrix's rows from `first` on, and return it.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        assert out.shape[1:] == self.shape[1:] and 0 <= first <= self.shape[0] - len(out)
        self.source.load_rows(self.stored, first, out)
        if self.offset:
            out += np.float32(self.offset)
        return out
