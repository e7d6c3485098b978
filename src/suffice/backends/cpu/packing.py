"""Weights packed by the extension where it can, else by the method itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from suffice.backends.cpu.rounding import (
    Blocks,
    pack_int8,
    pack_nested,
    round_natively,
    rows_of,
)
from suffice.native import core
from suffice.quant import Quant
from suffice.quant.code_layout import CodeLayout
from suffice.quant.coded import Coded
from suffice.quant.file import AsStored
from suffice.quant.four_bit import FourBit, Nested
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


class Quantizer(Protocol):
    """A method that chooses codes."""

    @property
    def quantize(self) -> Callable[..., Coded]:
        """Returns a weight [N, K] as codes, with H of its inputs if that is given."""
        ...


class Codes(Protocol):
    """A matrix [N, K] in codes that has not been read; see `checkpoints.source.UnreadCodes`."""

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
    """A matrix [N, K] of a file that has not been read; see `checkpoints.source.Weight`."""

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

    Codes and 8-bit floats stay as they are stored with `AsStored`, codes of few bits with `Nested`.
    """
    if isinstance(quant, AsStored | Nested):
        kept = _as_stored(quant, weight, bias, allocate)
        if kept is not None:
            return kept
    packed = _by_blocks(quant, weight.shape, weight.blocks, bias, allocate)
    return quant.pack(weight.load(), bias, allocate) if packed is None else packed


def pack(
    quant: Quant, weight: np.ndarray, bias: np.ndarray | None, allocate: Allocate
) -> PackedLinear:
    """Return what `quant.pack` does for a weight [N, K] of float32, float16 or bfloat16."""

    def whole() -> Blocks:
        return [(0, np.ascontiguousarray(weight))]

    packed = _by_blocks(quant, weight.shape, whole, bias, allocate)
    return quant.pack(weight, bias, allocate) if packed is None else packed


def quantize(
    quant: Quantizer, weight: np.ndarray, hessian: np.ndarray, **given: np.ndarray
) -> Coded:
    """Return what `quant.quantize` does for a weight [N, K], by the extension where it can."""
    if isinstance(quant, Nested | FourBit):
        return quant.quantize(weight, hessian, round_natively)
    return quant.quantize(weight, hessian, **given)


def _by_blocks(
    quant: Quant,
    shape: tuple[int, ...],
    blocks: Callable[[], Blocks],
    bias: np.ndarray | None,
    allocate: Allocate,
) -> PackedLinear | None:
    """Pack a matrix [N, K] in blocks of rows; None: the extension does not know the method."""
    if isinstance(quant, AsStored):
        quant = quant.floats
    if isinstance(quant, NoQuant):
        return _floats(quant, shape, blocks(), bias, allocate)
    if isinstance(quant, Int8):
        return pack_int8(quant, shape, blocks(), bias, allocate)
    if isinstance(quant, Nested | FourBit):
        return pack_nested(quant, shape, blocks(), bias, allocate)
    return None


def _as_stored(
    quant: AsStored | Nested, weight: Stored, bias: np.ndarray | None, allocate: Allocate
) -> PackedLinear | None:
    """Return a matrix that keeps its stored form; None if it does not."""
    stored = weight.codes()
    if isinstance(stored, StoredFloat8):
        return pack_float8(stored, bias, allocate) if isinstance(quant, AsStored) else None
    if stored is None or not (isinstance(quant, AsStored) or quant.stays(stored.layout)):
        return None
    return _pack_codes(quant, weight.shape, stored, bias, allocate)


def _pack_codes(
    quant: AsStored | Nested,
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


def _floats(
    quant: NoQuant,
    shape: tuple[int, ...],
    blocks: Blocks,
    bias: np.ndarray | None,
    allocate: Allocate,
) -> PackedLinear:
    rows, columns = shape
    dtype = DTYPES[quant.dtype]
    data = allocate(packed_shape(rows, columns, dtype), dtype)
    for first, block in blocks:
        panels = rows_of(data, first, block).view(np.uint8).reshape(-1)
        stored = block.view(np.uint8).reshape(-1)
        kind, own, width = block.dtype.name, *block.shape
        core.pack(stored, kind, own, width, panels, quant.dtype)
    return PackedLinear(data, rows, columns, bias=float32(bias))
