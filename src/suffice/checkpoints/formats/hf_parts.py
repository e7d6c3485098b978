"""The tensors that a quantized folder stores in place of one weight, and checks of their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from suffice.checkpoints.stored_file import FLOATS, Array, is_finite
from suffice.errors import InputError, shown
from suffice.quant.code_layout import UNIT
from suffice.quant.packed_float8 import StoredFloat8
from suffice.quant.stored_codes import StoredCodes

Stored = StoredCodes | StoredFloat8
FLOAT_TYPES = tuple(FLOATS)


class Tensors(Protocol):
    """The tensors of a folder, by stored name."""

    @property
    def where(self) -> str:
        """The folder."""
        ...

    @property
    def types(self) -> Mapping[str, str]:
        """The type of each tensor, such as BF16."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        ...

    def bytes(self, name: str) -> int:
        """Return the bytes that a tensor takes."""
        ...

    def load(self, name: str) -> Array:
        """Read a tensor as it is stored.

        Raises:
            InputError: The file cannot be read any more.
        """
        ...


class Reader(Protocol):
    """Reads the weights of one program."""

    @property
    def parts(self) -> Sequence[str]:
        """The last parts of the names of tensors that belong to a weight in codes."""
        ...

    def is_coded(self, parts: Parts) -> bool:
        """Whether the tensors of a layer are a weight in codes, not one stored whole."""
        ...

    def shape(self, parts: Parts) -> tuple[int, ...]:
        """Check types and shapes of a weight's tensors; return its shape: [N, K], or [E, N, K].

        Raises:
            InputError: They do not fit each other or the configuration.
        """
        ...

    def read(self, parts: Parts) -> Stored:
        """Read a weight whose shapes have been checked.

        Raises:
            InputError: The file cannot be read any more, or holds values that no such weight has.
        """
        ...

    def type(self, parts: Parts) -> str:
        """Return the name of a weight's storage, such as AWQ-4."""
        ...


class Parts:
    """The tensors of one layer, by the last part of their names."""

    def __init__(self, tensors: Tensors, layer: str, names: Mapping[str, str]) -> None:
        self._tensors, self._layer, self._names = tensors, layer, names

    def __contains__(self, part: str) -> bool:
        return part in self._names

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self._tensors.bytes(name) for name in self._names.values())

    def error(self, reason: str) -> InputError:
        """Build the error for this layer."""
        return InputError(f"{self._tensors.where}: layer '{shown(self._layer)}': {reason}")

    def type(self, part: str) -> str:
        """Return a tensor's type, such as I32; "" if there is no such tensor."""
        return self._tensors.types[self._names[part]] if part in self else ""

    def shape(self, part: str, dimensions: int = 2) -> tuple[int, ...]:
        """Return the shape of a tensor that must be there, with a number of dimensions.

        Raises:
            InputError: It is missing, empty or has others.
        """
        if part not in self:
            raise self.error(f"its '{part}' is missing")
        shape = self._tensors.shape(self._names[part])
        if len(shape) != dimensions or 0 in shape:
            raise self.error(f"'{part}' has shape {list(shape)}; {dimensions} dimensions expected")
        return shape

    def last(self, part: str) -> int:
        """Return the last dimension of a tensor that must be there; 1 of a number."""
        if part not in self:
            raise self.error(f"its '{part}' is missing")
        return (1, *self._tensors.shape(self._names[part]))[-1]

    def expect(self, part: str, types: Sequence[str], *shapes: tuple[int, ...]) -> None:
        """Refuse a tensor that is missing, or has none of these types or of these shapes.

        Raises:
            InputError: It is one.
        """
        if part not in self:
            raise self.error(f"its '{part}' is missing")
        if self.type(part) not in types:
            raise self.error(f"'{part}' has type {self.type(part)}; supported: {', '.join(types)}")
        shape = self._tensors.shape(self._names[part])
        if shapes and shape not in shapes:
            allowed = " or ".join(str(list(each)) for each in shapes)
            raise self.error(f"'{part}' has shape {list(shape)}; {allowed} expected")

    def load(self, part: str) -> Array:
        """Read a tensor.

        Raises:
            InputError: The file cannot be read any more.
        """
        return self._tensors.load(self._names[part])

    def scales(self, part: str) -> Array:
        """Read scales, contiguous and of a float type.

        Raises:
            InputError: The file cannot be read any more, or a scale is not finite.
        """
        found = self.load(part)
        if not is_finite(found):
            raise self.error(f"'{part}' has NaN or infinite entries; scales must be finite")
        return found

    def groups(self, columns: int, count: int, said: int | None) -> int | None:
        """Return the columns of a group; a row of `columns` has `count` groups; None: all.

        `said` is the configuration's number, or None for a row, which is checked.

        Raises:
            InputError: The number of groups is another one, or they do not divide the columns.
        """
        group = columns if said is None else said
        if columns % group:
            raise self.error(f"groups of {group} columns do not divide its {columns} columns")
        if columns // group != count:
            raise self.error(
                f"it has scales for {count} groups, but {columns} columns in groups of {group} "
                f"are {columns // group}"
            )
        if count == 1:
            return None
        if group % UNIT:
            raise self.error(f"groups of {group} columns; a multiple of {UNIT} is supported")
        return group


def order_of(parts: Parts, part: str, columns: int, groups: int) -> np.ndarray | None:
    """Return the order int32 [K] that puts the columns of each group together; None: they are.

    `part` has the group of each column, and every group must have as many columns.

    Raises:
        InputError: It does not give every group its columns.
    """
    group_of = parts.load(part).astype(np.int64)
    size = columns // groups
    known = group_of.min() >= 0 and group_of.max() < groups
    if not known or (np.bincount(group_of, minlength=groups) != size).any():
        raise parts.error(
            f"'{part}' must give each of {groups} groups {size} columns, so that act-order is a "
            "permutation"
        )
    order = np.argsort(group_of, kind="stable").astype(np.int32)
    return None if np.array_equal(order, np.arange(columns)) else order
