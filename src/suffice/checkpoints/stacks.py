"""Stacks of matrices that a checkpoint stores one by one, one for each expert.

A family's name map has `{e}` instead of an expert's index. `stack_source` makes a source in which
the stack, whose name has `*` there, can be read as one matrix, the first expert's rows on top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.source import Source, UnreadCodes
from suffice.checkpoints.stored_file import Array
from suffice.errors import InputError, shown
from suffice.quant.packed_float8 import StoredFloat8

EVERY = "*"  # instead of an expert's index
_PANEL_ROWS = 16


def members(name: str, experts: int) -> list[str]:
    """Return the stored names that a name stands for: those of a stack, or itself."""
    return [name.replace(EVERY, str(each)) for each in range(experts)] if EVERY in name else [name]


def stack_source(source: Source, names: Mapping[str, list[str]]) -> Source:
    """Return a source that also has stacks of its weights; without any, the source itself."""
    return _Stacked(source, names) if names else source


class _Stacked:
    """A source's weights, and stacks of them: `names` are those of their members."""

    def __init__(self, source: Source, names: Mapping[str, list[str]]) -> None:
        self._source, self._names = source, names
        own = source.shapes()
        self._shapes = dict(own)
        for name, parts in names.items():
            rows, *columns = own[parts[0]]
            self._shapes[name] = (len(parts) * rows, *columns)

    def _members(self, name: str) -> list[str]:
        return self._names.get(name, [name])

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every stored weight and of every stack."""
        return self._shapes

    def dtype(self, name: str) -> str:
        """Return the smallest type that holds a weight."""
        found = {self._source.dtype(each) for each in self._members(name)}
        return found.pop() if len(found) == 1 else "float32"

    def stored(self, name: str) -> tuple[str, int]:
        """Return the type in which a weight is stored, the first expert's, and its bytes."""
        found = [self._source.stored(each) for each in self._members(name)]
        return found[0][0], sum(size for _, size in found)

    @property
    def label(self) -> str | None:
        """The file's name for its storage as a whole."""
        return self._source.label

    def load(self, name: str) -> Array:
        """Read one weight in a floating-point type.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        found = [self._source.load(each) for each in self._members(name)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Convert rows `first`, `first` + 1, ... of a matrix into all rows of `out` [rows, K].

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        for part, start, rows in self._parts(name, first, out):
            self._source.load_rows(part, start, rows)

    def _parts(
        self, name: str, first: int, out: NDArray[np.float32]
    ) -> Iterator[tuple[str, int, NDArray[np.float32]]]:
        """Yield the members that have rows of `out`: name, first row, and their part of it."""
        parts = self._members(name)
        each = self._shapes[name][0] // len(parts)
        done = 0
        while done < len(out):
            part, start = divmod(first + done, each)
            count = min(each - start, len(out) - done)
            yield parts[part], start, out[done : done + count]
            done += count

    def in_codes(self, name: str) -> bool:
        """Return whether a matrix is stored in codes that become panels."""
        return all(self._source.in_codes(each) for each in self._members(name))

    def codes(self, name: str) -> UnreadCodes | StoredFloat8:
        """Return a matrix that is stored in codes.

        Raises:
            InputError: A damaged file, an entry that is not finite, or experts whose codes are laid
                out differently.
        """
        found = [self._source.codes(each) for each in self._members(name)]
        floats = [each for each in found if isinstance(each, StoredFloat8)]
        if len(floats) == len(found):
            data, scales = ([getattr(own, part) for own in floats] for part in ("data", "scales"))
            return StoredFloat8(np.concatenate(data), np.concatenate(scales))
        coded = [each for each in found if not isinstance(each, StoredFloat8)]
        first = coded[0]
        if len(found) == 1:
            return first
        alike = all(
            own.layout == first.layout
            and np.array_equal(own.levels, first.levels)
            and own.order is None
            for own in coded
        )
        if not alike or floats:
            raise InputError(
                f"'{shown(name)}': the experts of a layer have codes in different layouts or "
                "orders (act-order); give --quant int8 or --dtype bfloat16"
            )
        panels = self._shapes[name][0] // len(coded) // _PANEL_ROWS

        def fill(out: NDArray[np.uint8]) -> None:
            for at, own in enumerate(coded):
                own.fill(out[at * panels : (at + 1) * panels])

        return replace(first, fill=fill)
