"""Panels of codes in NumPy, as `csrc/linear/code_layout.h` draws them: the readable reference.

The numbers of groups keep their stored types: scales float16, bfloat16, float32, uint8 (powers,
e4m3) or int8 (nested); minima float16 or uint8; outer scales and minima, of nested ones, float16,
or float32 with a grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import ml_dtypes
import numpy as np

from suffice.quant.code_layout import NESTED, UNIT, CodeLayout
from suffice.quant.grids import GRIDS, entries_of
from suffice.quant.panels import ROWS, Allocate

ORDER = (0, 2, 1, 3)  # of columns within 4 bytes: neighbours end up as pairs of int16
LEVEL_OFFSET = 128  # added to levels, which are stored as bytes
PANELS = 16  # laid out at a time, so that their parts stay in the cache
_HALF, _BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
_BYTE, _SIGNED = np.dtype(np.uint8), np.dtype(np.int8)
_SCALES = {
    "float16": _HALF,
    "bfloat16": _BRAIN,
    "float32": np.dtype(np.float32),
    "power": _BYTE,
    "nested": _SIGNED,
    "e4m3": _BYTE,
    "nested32": _SIGNED,
}
_MINIMA = {"float16": _HALF, "zero": _BYTE, "nested": _BYTE}


@dataclass(frozen=True)
class Numbers:
    """What the groups of a weight [N, K] store: `scales` and `minima` [N, groups].

    `outer_scales` and `outer_minima` are [N, ceil(K / 256)].
    """

    scales: np.ndarray
    minima: np.ndarray | None = None
    outer_scales: np.ndarray | None = None
    outer_minima: np.ndarray | None = None


def pack_panels(
    layout: CodeLayout, codes: np.ndarray, numbers: Numbers, allocate: Allocate = np.empty
) -> np.ndarray:
    """Return panels uint8 [N/16, bytes] of codes uint8 [N, K] and the numbers of their groups."""
    assert layout.grid == "none", "files alone have places in grids"
    rows, columns = codes.shape
    panels = -(-rows // ROWS)
    data = allocate((panels, layout.panel_bytes(columns)), _BYTE)
    for first in range(0, panels, PANELS):
        own = slice(first * ROWS, (first + PANELS) * ROWS)
        to = data[first : first + PANELS]
        units = _unit_bytes(codes[own], layout.bits)
        for span, (header, at) in enumerate(spans(layout, columns)):
            for name, begin, kind, count in _sections(layout):
                stored = _panel_numbers(getattr(numbers, name), own, span, count, kind)
                to[:, header + begin : header + begin + stored.shape[1]] = stored
            to[:, header + layout.header_bytes : at.stop] = units[:, : at.stop - at.start]
            units = units[:, at.stop - at.start :]
    return data


def read_numbers(layout: CodeLayout, data: np.ndarray, columns: int) -> Numbers:
    """Return the numbers of a packed weight's groups, of all rows of its panels."""
    groups, found = -(-columns // layout.group), {}
    for name, begin, kind, count in _sections(layout):
        size = ROWS * count * kind.itemsize
        parts = [
            np.ascontiguousarray(data[:, header + begin : header + begin + size]).view(kind)
            for header, _ in spans(layout, columns)
        ]
        by_group = np.stack(parts, 1).reshape(len(data), -1, ROWS)
        of_rows = by_group.transpose(0, 2, 1).reshape(len(data) * ROWS, -1)
        found[name] = of_rows if name.startswith("outer") else of_rows[:, :groups]
    return Numbers(**found)


def read_codes(layout: CodeLayout, data: np.ndarray, columns: int) -> np.ndarray:
    """Return the codes of a packed weight, uint8 [16 panels, K]."""
    if layout.grid != "none":
        parts = [_grid_codes(layout, data, *span) for span in spans(layout, columns)]
        return np.concatenate(parts, 2).reshape(len(data) * ROWS, -1)[:, :columns]
    units = np.concatenate([data[:, at] for _, at in spans(layout, columns)], 1)
    return _codes_of(units, layout.bits)[:, :columns]


@cache
def grid_words(grid: str) -> np.ndarray:
    """Return the entries of a grid as kernels read them, uint32 [2^place_bits].

    Each byte has the codes of a column of an entry, those of the first four columns below.
    """
    codes = entries_of(grid)
    bits = codes[:, ORDER]
    if GRIDS[grid].columns > len(ORDER):
        bits = bits | codes[:, len(ORDER) :][:, ORDER] << 2
    return np.ascontiguousarray(bits).view("<u4")[:, 0].astype(np.uint32)


def _grid_codes(layout: CodeLayout, data: np.ndarray, header: int, at: slice) -> np.ndarray:
    """Return the codes of a span of places, uint8 [panels, 16, K]."""
    grid, panels = GRIDS[layout.grid], len(data)
    units = data[:, at].reshape(panels, -1, grid.unit_lines, ROWS, 4)
    places = units[:, :, : grid.entries // 4].transpose(0, 3, 1, 2, 4).reshape(panels, ROWS, -1)
    places = places.astype(np.uint32)
    if grid.further_bits:
        end = header + layout.header_bytes
        lines = data[:, end - grid.further_lines * 4 * ROWS : end].reshape(panels, -1, ROWS, 4)
        words = np.ascontiguousarray(lines.transpose(0, 2, 1, 3)).view("<u4")[..., 0]
        bit = np.arange(places.shape[2]) * grid.further_bits
        further = words[:, :, bit // 32] >> (bit % 32).astype(np.uint32)
        places |= (further & (1 << grid.further_bits) - 1) << 8
    codes = entries_of(layout.grid)[places & (1 << grid.place_bits) - 1].reshape(panels, ROWS, -1)
    if grid.signs:
        plane = units[:, :, -1][..., list(ORDER)]
        bits = plane[:, :, :, None] >> np.arange(UNIT // 4, dtype=np.uint8)[:, None] & 1
        signs = bits.transpose(0, 2, 1, 3, 4).reshape(codes.shape)
    else:
        signs = np.repeat(places >> grid.place_bits, grid.columns, 2).astype(np.uint8)
    found: np.ndarray = codes | signs << layout.bits - 1
    return found


def dense(layout: CodeLayout, levels: np.ndarray, data: np.ndarray, columns: int) -> np.ndarray:
    """Return the weight float32 [16 panels, K]: scale * level + minimum, each rounded.

    With zero points it is scale * (level - zero). `levels` uint8 [2^bits] are the levels plus 128.
    """
    numbers = read_numbers(layout, data, columns)
    group = np.arange(columns) // layout.group
    scale = _scale(layout, numbers)
    level = levels.astype(np.float32) - np.float32(LEVEL_OFFSET)
    weight: np.ndarray = level[read_codes(layout, data, columns)]
    if layout.minima == "zero":
        weight -= _zero(layout, numbers)[:, group]
    weight *= scale[:, group]
    if layout.minima in ("float16", "nested"):
        weight += _minimum(layout, numbers)[:, group]
    return weight


def _scale(layout: CodeLayout, numbers: Numbers) -> np.ndarray:
    """Return the scales of groups, float32 [N, groups]."""
    if layout.scales == "power":
        power: np.ndarray = np.ldexp(np.float32(1), numbers.scales.astype(np.int32) - 128)
        return power
    if layout.scales == "e4m3":
        exponents, fractions = numbers.scales >> 3, (numbers.scales & 7).astype(np.float32)
        small: np.ndarray = np.ldexp(
            fractions + 8 * (exponents > 0), np.maximum(exponents, 1).astype(np.int32) - 11
        )
        return small
    inner = numbers.scales.astype(np.float32)
    if numbers.outer_scales is None:
        return inner
    return _spread(layout, numbers.outer_scales, inner.shape[1]) * inner


def _zero(layout: CodeLayout, numbers: Numbers) -> np.ndarray:
    """Return the zero points of groups, float32 [N, groups]."""
    assert numbers.minima is not None
    zero: np.ndarray = numbers.minima.astype(np.float32)
    return zero - LEVEL_OFFSET if layout.bits == 8 else zero


def _minimum(layout: CodeLayout, numbers: Numbers) -> np.ndarray:
    """Return the minima of groups, float32 [N, groups]."""
    assert numbers.minima is not None
    minimum = numbers.minima.astype(np.float32)
    if numbers.outer_minima is None or layout.minima != "nested":
        return minimum
    return -_spread(layout, numbers.outer_minima, minimum.shape[1]) * minimum


def _spread(layout: CodeLayout, outer: np.ndarray, groups: int) -> np.ndarray:
    """Return outer numbers [N, ceil(K / 256)] for each group, float32 [N, groups]."""
    return np.repeat(outer.astype(np.float32), NESTED // layout.group, 1)[:, :groups]


def _sections(layout: CodeLayout) -> list[tuple[str, int, np.dtype[Any], int]]:
    """Return the parts of a header: a field of `Numbers`, first byte, type, numbers of a row."""
    each, kind = layout.groups_in_span, _SCALES[layout.scales]
    parts = [("scales", kind, each)]
    if layout.scales == "nested":
        parts = [("outer_scales", _HALF, 1), ("outer_minima", _HALF, 1), *parts]
    elif layout.scales == "nested32":
        parts = [("outer_scales", _SCALES["float32"], 1), *parts]
    if layout.minima != "none":
        parts.append(("minima", _MINIMA[layout.minima], each))
    begins = np.cumsum([0] + [ROWS * count * kind.itemsize for _, kind, count in parts])
    return [
        (name, int(at), kind, n) for (name, kind, n), at in zip(parts, begins[:-1], strict=True)
    ]


def spans(layout: CodeLayout, columns: int) -> Iterator[tuple[int, slice]]:
    """Yield the first byte of each span's header, and the bytes of its units."""
    at, unit = 0, layout.unit_bytes
    for begin in range(0, columns, layout.span):
        units = -(-min(layout.span, columns - begin) // UNIT)
        codes = at + layout.header_bytes
        yield at, slice(codes, codes + units * unit)
        at = codes + units * unit


def _panel_numbers(
    values: np.ndarray | None, rows: slice, span: int, count: int, kind: np.dtype[Any]
) -> np.ndarray:
    """Return the numbers of a span [N, groups], of some rows, as bytes [N/16, 16 count size]."""
    part = np.zeros((1, 0), kind) if values is None else values[rows, span * count :][:, :count]
    filled = np.zeros((-(-len(part) // ROWS) * ROWS, count), kind)
    filled[: len(part), : part.shape[1]] = part
    by_group = filled.reshape(-1, ROWS, count).transpose(0, 2, 1)
    return np.ascontiguousarray(by_group).view(np.uint8).reshape(len(by_group), -1)


def _unit_bytes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes [N, K] by panel and unit, as bytes [N/16, 2 bits K]."""
    rows, columns = codes.shape
    low = _low_bits(bits)
    if columns % UNIT or rows % ROWS:
        codes = np.pad(codes, ((0, -rows % ROWS), (0, -columns % UNIT)))
    fours = codes.reshape(len(codes) // ROWS, ROWS, -1, UNIT // 4, 4)
    fours = np.ascontiguousarray(fours.transpose(0, 2, 3, 1, 4))[..., list(ORDER)]
    # [panels, units, 8, 16, 4]
    each = 8 // low
    parts = [(fours[:, :, i::each] & (1 << low) - 1) << low * i for i in range(each)]
    lines = [reduce(np.bitwise_or, parts)]
    for bit in range(low, bits):
        planes = [(fours[:, :, i : i + 1] >> bit & 1) << i for i in range(UNIT // 4)]
        lines.append(reduce(np.bitwise_or, planes))
    return np.concatenate(lines, 2).reshape(len(fours), -1)


def _codes_of(stored: np.ndarray, bits: int) -> np.ndarray:
    """Return the codes [N, K], padded, from the bytes of `_unit_bytes`."""
    low, fours = _low_bits(bits), UNIT // 4
    each = 8 // low
    units = stored.reshape(len(stored), -1, bits, ROWS, 4)
    found = []
    for i in range(fours):
        code = units[:, :, i // each] >> low * (i % each) & (1 << low) - 1
        for bit in range(low, bits):
            code = code | (units[:, :, bit] >> i & 1) << bit
        found.append(code)
    codes = np.stack(found, 2)[..., list(ORDER)]  # the order is its own inverse
    rows: np.ndarray = codes.transpose(0, 3, 1, 2, 4).reshape(len(stored) * ROWS, -1)
    return rows


def _low_bits(bits: int) -> int:
    return bits if bits == 8 else 4 if bits >= 4 else 2
