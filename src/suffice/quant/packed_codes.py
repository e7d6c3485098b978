"""Weights in codes of 2 to 6 or 8 bits, packed in the layout of `quant.code_layout`.

Inputs are integers, int16 or int8, times a scale for every 32 columns of a token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from suffice.errors import InputError
from suffice.quant.activations import Site
from suffice.quant.code_layout import UNIT, CodeLayout
from suffice.quant.code_panels import (
    LEVEL_OFFSET,
    Numbers,
    dense,
    pack_panels,
    read_codes,
    read_numbers,
)
from suffice.quant.coded import Coded, Grid, check_group
from suffice.quant.hadamard import rotate
from suffice.quant.panels import Allocate, PackedLinear, float32

LEAST_BITS = 2
# The greatest integers of inputs: a signed byte's, and 256 times that plus one more.
INPUT_LEVELS = {16: 256 * 127 + 127, 8: 127}


@dataclass(frozen=True, eq=False)
class PackedCodes(PackedLinear):
    """A linear layer's weight in codes as a backend reads it; `data` is uint8 [N/16, bytes].

    `levels` uint8 [2^bits] are the levels plus 128; those of 8 bits are 0 to 255. Column k of the
    codes multiplies input `order[k]` (int32 [K]; None: input k). Then inputs are rotated in blocks
    of `rotation` (0: not), mapped to the codebook of a `site` if there is one, and quantized to
    integers of at most `most`, with a scale for every 32 of them.
    """

    layout: CodeLayout = field(kw_only=True)
    levels: np.ndarray = field(kw_only=True)
    order: np.ndarray | None = field(default=None, kw_only=True)
    rotation: int = field(default=0, kw_only=True)
    most: int = field(default=INPUT_LEVELS[16], kw_only=True)
    site: Site | None = field(default=None, kw_only=True)

    @property
    def dtype(self) -> str:
        """Name of the storage type."""
        return "codes"

    @property
    def stored_floats(self) -> np.ndarray:
        """All floating-point numbers among those of the groups, float32."""
        parts = vars(read_numbers(self.layout, self.data, self.columns)).values()
        kept = [p.astype(np.float32).ravel() for p in parts if p is not None and p.itemsize > 1]
        return np.concatenate([*kept, np.empty(0, np.float32)])

    def quantize_inputs(self, x: np.ndarray) -> np.ndarray:
        """Return inputs [T, K] rounded to the codebook of the site, outliers exact."""
        if self.site is None:
            return x
        ordered = x if self.order is None else x[:, self.order]
        rotated = rotate(ordered, self.rotation) if self.rotation else ordered
        return self.by_input(self.site.rounded(rotated))

    def by_input(self, values: np.ndarray) -> np.ndarray:
        """Return values [T, K] of columns of the codes as those of inputs: rotated, in order."""
        if self.rotation:
            values = rotate(values, self.rotation)
        if self.order is None:
            return values
        found = np.empty_like(values)
        found[:, self.order] = values
        return found

    def unpack(self) -> np.ndarray:
        """Return the dense weight [N, K] in float32, for inputs that are not rotated."""
        weight = dense(self.layout, self.levels, self.data, self.columns)[: self.rows]
        return self.by_input(weight)


def pack_codes(
    coded: Coded,
    bias: np.ndarray | None = None,
    *,
    rotation: int = 0,
    a: int = 16,
    site: Site | None = None,
    allocate: Allocate = np.empty,
) -> PackedCodes:
    """Pack codes with int8 levels and no zero points; 8 bits have the levels -128 to 127.

    Inputs have `a` bits, or are mapped to the codebook of a `site`.

    Raises:
        InputError: Codes of 7 bits, levels that cannot be stored, or groups that are not whole
            units.
    """
    grid, levels = coded.grid, coded.grid.levels
    bits = max((len(levels) - 1).bit_length(), LEAST_BITS)
    whole = np.rint(levels).clip(-LEVEL_OFFSET, LEVEL_OFFSET - 1)
    if grid.zero is not None or not np.array_equal(levels, whole):
        raise InputError(
            "only codes of int8 levels without zero points can be packed: give levels=int8, or "
            "symmetric=true"
        )
    rows, columns = coded.codes.shape
    group = grid.group if grid.group < columns else -(-columns // UNIT) * UNIT
    check_group("codes", group)
    layout = CodeLayout(bits, group)
    table = np.pad(levels, (0, 2**bits - len(levels)), "edge") + LEVEL_OFFSET
    if bits == 8 and not np.array_equal(table, np.arange(256)):
        raise InputError("codes of 8 bits have the levels -128 to 127; other levels: up to 6 bits")
    numbers = Numbers(grid.scale.astype(np.float16))
    return PackedCodes(
        pack_panels(layout, coded.codes, numbers, allocate),
        rows,
        columns,
        bias=float32(bias),
        layout=layout,
        levels=table.astype(np.uint8),
        rotation=rotation,
        most=INPUT_LEVELS[16 if site else a],
        site=site,
    )


def unpack_codes(packed: PackedCodes) -> Coded:
    """Return the input of `pack_codes`, with 2^bits levels."""
    layout = packed.layout
    numbers = read_numbers(layout, packed.data, packed.columns)
    return Coded(
        np.ascontiguousarray(read_codes(layout, packed.data, packed.columns)[: packed.rows]),
        Grid(
            packed.levels.astype(np.float32) - LEVEL_OFFSET,
            numbers.scales[: packed.rows].astype(np.float32),
            layout.group,
        ),
    )
