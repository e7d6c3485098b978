"""Weights packed by the extension where it can, else by the method itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from suffice.errors import InputError
from suffice.native import core
from suffice.quant import Quant
from suffice.quant.code_layout import CodeLayout
from suffice.quant.file import AsStored
from suffice.quant.int8 import Int8
from suffice.quant.none import NoQuant
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes
from suffice.quant.packed_float8 import StoredFloat8, pack_float8
from suffice.quant.panels import (
    DTYPES,
    ROWS,
    Allocate,
    PackedLinear,
    float32,
    packed_shape,
)

__all__ = ["pack", "pack_groups", "pack_stored"]


class Codes(Protocol):
    """A matrix [N, K] in codes that has not been read; see `models.checkpoint.UnreadCodes`."""

    @property
    def layout(self) -> CodeLayout:
        """The layout of its panels."""
        ...

    @property
    def levels(self) -> np.ndarray:
        """Its levels plus 128, uint8 [2^bits]."""
        ...

    @property
    def order(self) -> np.ndarray | None:
        """The inputs that its columns multiply, int32 [K]; None: in order."""
        ...

    @property
    def fill(self) -> Callable[[np.ndarray], None]:
        """Writes its panels uint8 [N/16, bytes]."""
        ...


class Stored(Protocol):
    """A matrix [N, K] of a file that has not been read; see `models.checkpoint.Weight`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """N and K."""
        ...

    def codes(self) -> Codes | StoredFloat8 | None:
        """Return a matrix that is stored in codes or 8-bit floats as it is stored; else None."""
        ...

    def load(self) -> np.ndarray:
        """Return all of it."""
        ...

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks of rows in float32, whole panels, each after the number of its first row."""
        ...


def pack_stored(
    quant: Quant, weight: Stored, bias: np.ndarray | None, allocate: Allocate
) -> PackedLinear:
    """Read a matrix and pack it as `pack` does; it never exists as a whole if that can be.

    With `AsStored`, codes and 8-bit floats stay as they are stored.
    """
    if isinstance(quant, AsStored):
        stored = weight.codes()
        if isinstance(stored, StoredFloat8):
            return pack_float8(stored, bias, allocate)
        if stored is not None:
            return _pack_codes(quant, weight.shape, stored, bias, allocate)
        quant = quant.floats
    if not isinstance(quant, Int8 | NoQuant):
        return quant.pack(weight.load(), bias, allocate)
    rows, columns = weight.shape
    packed = _empty(quant, rows, columns, bias, allocate)
    for first, block in weight.blocks():
        _fill(packed, first, block)
    return packed


def pack(
    quant: Quant, weight: np.ndarray, bias: np.ndarray | None, allocate: Allocate
) -> PackedLinear:
    """Return what `quant.pack` does for a weight [N, K] of float32, float16 or bfloat16."""
    if isinstance(quant, AsStored):
        quant = quant.floats
    if not isinstance(quant, Int8 | NoQuant):
        return quant.pack(weight, bias, allocate)
    rows, columns = weight.shape
    packed = _empty(quant, rows, columns, bias, allocate)
    _fill(packed, 0, np.ascontiguousarray(weight))
    return packed


def _pack_codes(
    quant: AsStored,
    shape: tuple[int, ...],
    codes: Codes,
    bias: np.ndarray | None,
    allocate: Allocate,
) -> PackedCodes:
    rows, columns = shape
    data = allocate((-(-rows // ROWS), codes.layout.panel_bytes(columns)), np.dtype(np.uint8))
    codes.fill(data)
    return PackedCodes(
        data,
        rows,
        columns,
        bias=float32(bias),
        layout=codes.layout,
        levels=codes.levels,
        most=INPUT_LEVELS[quant.act_bits],
        order=codes.order,
    )


def pack_groups(
    codes: np.ndarray,
    layout: CodeLayout,
    scales: np.ndarray,
    minima: np.ndarray | None = None,
    outer: np.ndarray | None = None,
    allocate: Allocate = np.empty,
) -> np.ndarray:
    """Return panels uint8 [N/16, bytes] of codes uint8 [N, K] below 2^bits; no value changes.

    `scales` and `minima` [N, G] are numbers of the layout's forms: float16, bfloat16 or float32;
    int8 for nested scales; else uint8. `outer` float16 [N, S, 2] holds the factors of nested scales
    and minima, for each of the S spans of a row.

    Raises:
        InputError: A scale or a minimum is not finite.
        ValueError: A code is too large, or an array has another size.
    """
    rows, columns = codes.shape
    data = allocate((-(-rows // ROWS), layout.panel_bytes(columns)), np.dtype(np.uint8))
    if not core.pack_codes(
        codes,
        layout.bits,
        layout.group,
        layout.scales,
        layout.minima,
        _bytes(scales),
        None if outer is None else _bytes(outer),
        None if minima is None else _bytes(minima),
        data.reshape(-1),
    ):
        raise InputError("a scale or a minimum is not finite")
    return data


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _empty(
    quant: Int8 | NoQuant, rows: int, columns: int, bias: np.ndarray | None, allocate: Allocate
) -> PackedLinear:
    dtype = DTYPES[quant.dtype or "int8"]
    data = allocate(packed_shape(rows, columns, dtype), dtype)
    scale = np.empty(rows, np.float32) if isinstance(quant, Int8) else None
    return PackedLinear(data, rows, columns, scale, float32(bias))


def _fill(packed: PackedLinear, first: int, block: np.ndarray) -> None:
    """Pack some rows, from row `first` on, which begins a panel."""
    rows, columns = block.shape
    panels = packed.data[first // ROWS : -(-(first + rows) // ROWS)]
    core.pack(
        block.view(np.uint8).reshape(-1),
        block.dtype.name,
        rows,
        columns,
        panels.view(np.uint8).reshape(-1),
        packed.dtype,
        None if packed.scale is None else packed.scale[first : first + rows],
    )
