"""How weights of few bits lie in memory; `csrc/linear/code_layout.h` draws it.

    w[n, k] = scale[n, g] level[code[n, k]] + minimum[n, g],    g = k // group

Forms of a scale: `float16`, `bfloat16` or `float32`; `power`, a byte e for 2^(e - 128); `nested`, a
signed byte times a float16 for all groups of 256 columns; `nested32`, the same times a float32, of
codes in a grid; `e4m3`, half of an unsigned float of 4 and 3 bits. Forms of a minimum: `none`, for
0; `float16`; `zero`, a byte z for scale (level - z), or scale (level - (z - 128)) if codes have 8
bits; `nested`, a byte m for -m times a float16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from suffice.errors import InputError
from suffice.quant.grids import GRIDS, UNIT_COLUMNS, GridName
from suffice.quant.panels import ROWS

ScaleForm = Literal["float16", "bfloat16", "power", "nested", "float32", "e4m3", "nested32"]
MinimumForm = Literal["none", "float16", "zero", "nested"]
_BYTES = ("power", "e4m3")  # scales that are a byte and nothing else
BITS = (2, 3, 4, 5, 6, 8)
_SMALL_FLOAT_GROUP = 16
UNIT = UNIT_COLUMNS  # columns whose codes are stored together
NESTED = 256  # columns that share the outer scale of nested ones
_LINE_BYTES = 64


@dataclass(frozen=True)
class CodeLayout:
    """Bits of a code, columns of a group, and the forms of a group's scale and minimum.

    Of a `grid`, places of entries are stored, not codes.

    Raises:
        InputError: A layout that does not exist.
    """

    bits: int
    group: int
    scales: ScaleForm = "float16"
    minima: MinimumForm = "none"
    grid: GridName = "none"

    def __post_init__(self) -> None:
        nested = self.nested
        if self.bits not in BITS:
            raise InputError(f"codes of {self.bits} bits cannot be stored; allowed: 2..6, 8")
        if self.scales not in get_args(ScaleForm) or self.minima not in get_args(MinimumForm):
            raise InputError(f"no codes with {self.scales} scales and {self.minima} minima")
        gridded = self.grid != "none"
        if gridded != (self.scales == "nested32") or (gridded and self.minima != "none"):
            raise InputError(
                "a grid goes with nested32 scales and no minima, and these with a grid"
            )
        if gridded and (self.grid not in GRIDS or self.bits != GRIDS[self.grid].code_bits):
            raise InputError(f"no codes of {self.bits} bits with grid {self.grid}")
        if self.minima == "nested" and not nested:
            raise InputError("nested minima go with nested scales")
        if self.scales in _BYTES and self.minima != "none":
            raise InputError(f"{self.scales} scales, which are bytes, go without minima")
        if self.scales == "float32" and self.minima not in ("none", "zero"):
            raise InputError("float32 scales go with zero points or no minima")
        if nested and (self.minima not in ("none", "nested") or self.group not in (16, 32, 64)):
            raise InputError(
                "nested scales are for 16, 32 or 64 columns, with nested minima or none"
            )
        if self.scales == "e4m3" and self.group != _SMALL_FLOAT_GROUP:
            raise InputError(f"e4m3 scales are for {_SMALL_FLOAT_GROUP} columns, not {self.group}")
        whole = not nested and self.scales != "e4m3"
        if whole and (self.group < UNIT or self.group % UNIT):
            raise InputError(f"group={self.group}: must be a multiple of {UNIT}")

    @property
    def nested(self) -> bool:
        """Whether scales are bytes times a number for 256 columns."""
        return self.scales in ("nested", "nested32")

    @property
    def groups_in_span(self) -> int:
        """Groups whose scales and minima stand together."""
        if self.nested:
            return NESTED // self.group
        return 4 if self.scales in _BYTES or self.minima == "zero" else 2

    @property
    def span(self) -> int:
        """Columns of these groups."""
        return self.groups_in_span * self.group

    @property
    def header_bytes(self) -> int:
        """Bytes of their scales and minima in a panel."""
        each = ROWS * self.groups_in_span
        if self.nested:
            lines = 1 if self.grid == "none" else 1 + GRIDS[self.grid].further_lines
            return lines * _LINE_BYTES + each * (2 if self.minima == "nested" else 1)
        if self.scales in _BYTES:
            return each
        if self.scales == "float32":
            return each * (5 if self.minima == "zero" else 4)
        return each * {"none": 2, "float16": 4, "zero": 3, "nested": 0}[self.minima]

    @property
    def unit_bytes(self) -> int:
        """Bytes of the codes, or places, of 32 columns in a panel."""
        lines = self.bits if self.grid == "none" else GRIDS[self.grid].unit_lines
        return lines * _LINE_BYTES

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight with its share of scales and minima, in whole spans."""
        return 8 / ROWS * (self.unit_bytes / UNIT + self.header_bytes / self.span)

    def panel_bytes(self, columns: int) -> int:
        """Bytes of a panel with `columns` columns."""
        units, spans = -(-columns // UNIT), -(-columns // self.span)
        return spans * self.header_bytes + units * self.unit_bytes
