"""Panels of codes read number by number, as `csrc/linear/code_layout.h` draws them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from suffice.quant.code_layout import UNIT, CodeLayout
from suffice.quant.grids import GRIDS, entries_of

ROWS, LINE, ORDER, OFFSET = 16, 64, (0, 2, 1, 3), 128


def dense(
    panels: np.ndarray, layout: CodeLayout, levels: np.ndarray, rows: int, columns: int
) -> np.ndarray:
    """Return the values [rows, columns] in float32; each product and sum is rounded."""
    found = np.zeros((len(panels) * ROWS, -(-columns // UNIT) * UNIT), np.float32)
    for panel, bytes_ in enumerate(panels):
        own = found[panel * ROWS : (panel + 1) * ROWS]
        at = 0
        for first in range(0, own.shape[1], UNIT):
            if first % layout.span == 0:
                header = bytes_[at : at + layout.header_bytes]
                at += layout.header_bytes
            unit = bytes_[at : at + layout.unit_bytes].reshape(-1, ROWS, 4)
            at += layout.unit_bytes
            if layout.grid == "none":
                own_codes = codes(unit, layout.bits)
            else:
                own_codes = grid_codes(unit, header, first % layout.span // UNIT, layout)
            level = (levels[own_codes].astype(np.int32) - OFFSET).astype(np.float32)
            group = (first % layout.span + np.arange(UNIT)) // layout.group
            scale, zero, minimum = (each[:, group] for each in numbers(header, layout))
            own[:, first : first + UNIT] = (level - zero) * scale + minimum
        assert at == len(bytes_)
    return found[:rows, :columns]


def codes(unit: np.ndarray, bits: int) -> np.ndarray:
    """Return the codes [16, 32] of a unit [lines, 16, 4]."""
    low = 8 if bits == 8 else 2 if bits < 4 else 4
    found = np.zeros((ROWS, UNIT), np.uint8)
    for column in range(UNIT):
        four, byte = column // 4, ORDER.index(column % 4)
        line, shift = four // (8 // low), four % (8 // low) * low
        code = unit[line, :, byte] >> shift & (1 << low) - 1
        for bit in range(low, bits):
            code = code | (unit[bit, :, byte] >> four & 1) << bit
        found[:, column] = code
    return found


def grid_codes(unit: np.ndarray, header: np.ndarray, at: int, layout: CodeLayout) -> np.ndarray:
    """Return the codes [16, 32] of unit `at` of a span of places."""
    place_bits, columns, signs = GRIDS[layout.grid]
    lines = header[LINE + ROWS * layout.groups_in_span :].view("<u4").reshape(-1, ROWS)
    more = place_bits - 8 + (0 if signs else 1)
    found = np.zeros((ROWS, UNIT), np.uint8)
    for i in range(UNIT // columns):
        place = unit[i // 4, :, i % 4].astype(np.uint32)
        bit = (at * (UNIT // columns) + i) * more
        if more:
            place |= (lines[bit // 32] >> np.uint32(bit % 32) & (1 << more) - 1) << 8
        entry = entries_of(layout.grid)[place % 2**place_bits]
        for column in range(i * columns, (i + 1) * columns):
            sign = place >> place_bits
            if signs:
                sign = unit[-1, :, ORDER.index(column % 4)] >> column // 4 & 1
            found[:, column] = entry[:, column % columns] | sign << layout.bits - 1
    return found


def numbers(header: np.ndarray, layout: CodeLayout) -> list[np.ndarray]:
    """Return the scales, zero points and minima [16, groups] of a header, in float32."""
    shape = (layout.groups_in_span, ROWS)
    count = layout.groups_in_span * ROWS
    none = np.zeros(shape, np.float32)
    if layout.scales == "power":
        return [np.ldexp(np.float32(1), header.reshape(shape).astype(int) - 128).T, none.T, none.T]
    if layout.scales == "e4m3":
        exponents, fractions = (each.reshape(shape).T for each in (header >> 3, header & 7))
        sizes = np.where(exponents, 1 + fractions / 8, fractions / 4)
        return [np.ldexp(sizes, exponents.astype(int) - 8).astype(np.float32), none.T, none.T]
    if layout.scales == "nested32":
        scale = header[LINE : LINE + count].view(np.int8).reshape(shape)
        return [(scale * header[:LINE].view(np.float32)).T, none.T, none.T]
    if layout.scales == "nested":
        outer = header[:LINE].view(np.float16).reshape(2, ROWS).astype(np.float32)
        bytes_ = header[LINE:].reshape(-1, *shape)
        scale = bytes_[0].view(np.int8) * outer[0]
        if layout.minima == "none":
            assert not outer[1].any()
            return [scale.T, none.T, none.T]
        return [scale.T, none.T, -(bytes_[1] * outer[1]).T]
    dtype = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
    size = np.dtype(dtype[layout.scales]).itemsize * count
    scale = header[:size].view(dtype[layout.scales]).reshape(shape).astype(np.float32)
    rest = header[size:]
    if layout.minima == "none":
        return [scale.T, none.T, none.T]
    if layout.minima == "zero":
        zero = rest.reshape(shape).astype(np.float32) - (OFFSET if layout.bits == 8 else 0)
        return [scale.T, zero.T, none.T]
    return [scale.T, none.T, rest.view(np.float16).reshape(shape).astype(np.float32).T]
