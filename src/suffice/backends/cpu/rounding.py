"""Weights rounded to codes by the extension, and codes as panels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from suffice.errors import InputError
from suffice.native import core
from suffice.quant.code_layout import NESTED, CodeLayout
from suffice.quant.code_panels import Numbers
from suffice.quant.coded import check_weight
from suffice.quant.four_bit import FourBit, Nested
from suffice.quant.int8 import INT8_LAYOUT, ROUNDING, Int8
from suffice.quant.nested import Rounded, Rounding
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.panels import ROWS, Allocate

Blocks = Iterable[tuple[int, np.ndarray]]  # rows of a matrix, after the number of their first


def pack_int8(
    quant: Int8,
    shape: tuple[int, ...],
    blocks: Blocks,
    bias: np.ndarray | None,
    allocate: Allocate,
) -> PackedCodes:
    """Round a matrix [N, K] of float32, float16 or bfloat16.

    Raises:
        InputError: A weight so large that float16 cannot hold its scale.
    """
    data = _panels(INT8_LAYOUT, shape, allocate)
    for first, block in blocks:
        stored, panels = block.view(np.uint8).reshape(-1), rows_of(data, first, block).reshape(-1)
        rows, columns = block.shape
        kind = block.dtype.name
        if not core.round_int8(stored, kind, rows, columns, ROUNDING.shares, panels):
            raise InputError("a weight needs a scale that is too large: float16 holds up to 65504")
    rows, columns = shape
    return quant.packed(data, rows, columns, bias)


def pack_nested(
    quant: Nested | FourBit,
    shape: tuple[int, ...],
    blocks: Blocks,
    bias: np.ndarray | None,
    allocate: Allocate,
) -> PackedCodes:
    """Round a matrix [N, K] block by block, in the form that is best for the first one.

    Raises:
        InputError: A weight that is not finite.
    """
    method = quant if isinstance(quant, Nested) else quant.plain
    form: Rounding | None = None
    for first, block in blocks:
        check_weight(block)
        values = np.ascontiguousarray(block, np.float32)
        if form is None:
            form = method.best(values, round_natively)
            data = _panels(form.layout, shape, allocate)
        found = round_natively(values, form, None)
        _write(found.codes, form.layout, found.numbers, rows_of(data, first, block))
    assert form is not None
    return method.packed_as(form, data, shape, bias)


def round_natively(
    weight: np.ndarray, by: Rounding, importance: np.ndarray | None = None
) -> Rounded:
    """Return what `round_groups` does for a weight float32 [N, K], computed by the extension."""
    rows, columns = weight.shape
    groups, spans = -(-columns // by.layout.group), -(-columns // NESTED)
    codes, scales = np.empty((rows, columns), np.uint8), np.empty((rows, groups), np.int8)
    minima = np.empty((rows, groups), np.uint8) if by.layout.minima == "nested" else None
    outer = np.empty((rows, spans, 2), np.float16)
    lost = core.round_groups(
        weight,
        by.layout.group,
        by.levels,
        by.shares,
        importance,
        codes,
        scales.view(np.uint8),
        minima,
        outer.view(np.uint8),
    )
    return Rounded(codes, Numbers(scales, minima, outer[..., 0], outer[..., 1]), lost)


def rows_of(data: np.ndarray, first: int, block: np.ndarray) -> np.ndarray:
    """Return the panels of a block of rows whose first begins a panel."""
    return data[first // ROWS : -(-(first + len(block)) // ROWS)]


def _panels(layout: CodeLayout, shape: tuple[int, ...], allocate: Allocate) -> np.ndarray:
    rows, columns = shape
    return allocate((-(-rows // ROWS), layout.panel_bytes(columns)), np.dtype(np.uint8))


def _write(codes: np.ndarray, layout: CodeLayout, numbers: Numbers, to: np.ndarray) -> None:
    assert numbers.outer_scales is not None
    assert numbers.outer_minima is not None
    outer = np.stack([numbers.outer_scales, numbers.outer_minima], -1)
    pack_groups(codes, layout, numbers.scales, numbers.minima, outer, lambda shape, dtype: to)


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
