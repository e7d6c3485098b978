"""Grids of codes: lists of some of all combinations of the codes of 8 or 4 adjacent columns.

A place in a grid takes fewer bits than the codes. GGUF's types IQ1 to IQ3 store places; which
combinations their grids have is known to the `gguf` package, which is imported only for them.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import numpy as np

GridName = Literal["none", "iq2_xxs", "iq2_xs", "iq2_s", "iq1", "iq3_xxs", "iq3_s"]
UNIT_COLUMNS = 32
_FOURS = 4  # places in the 4 bytes that a row has of a line


class Grid(NamedTuple):
    """Bits of a place, columns of an entry, and whether each column has a sign.

    If not, each entry has one. A sign is the highest bit of a code.
    """

    place_bits: int
    columns: int
    signs: bool

    @property
    def entries(self) -> int:
        """Entries of a unit of 32 columns."""
        return UNIT_COLUMNS // self.columns

    @property
    def further_bits(self) -> int:
        """Bits of a place beyond a byte, and the sign of an entry."""
        return self.place_bits - 8 + (not self.signs)

    @property
    def further_lines(self) -> int:
        """Lines with these bits in the header of a span of 8 units; a row has 32 bits of each."""
        return 8 * self.entries * self.further_bits // 32

    @property
    def unit_lines(self) -> int:
        """Lines of a unit: low bytes of places, and a plane of signs."""
        return self.entries // _FOURS + self.signs

    @property
    def code_bits(self) -> int:
        """Bits of a code, with its sign."""
        return 4 if self.columns == 4 else 3


GRIDS: dict[str, Grid] = {
    "iq2_xxs": Grid(8, 8, True),
    "iq2_xs": Grid(9, 8, True),
    "iq2_s": Grid(10, 8, True),
    "iq1": Grid(11, 8, False),
    "iq3_xxs": Grid(8, 4, True),
    "iq3_s": Grid(9, 4, True),
}


@cache
def entries_of(name: str) -> np.ndarray:
    """Return the codes of a grid's entries without signs, uint8 [2^place_bits, columns]."""
    import gguf

    of_type = getattr(gguf.quants, "IQ1_S" if name == "iq1" else name.upper())
    of_type.init_grid()
    codes = np.searchsorted(of_type.grid_map, of_type.grid).astype(np.uint8)
    found: np.ndarray = codes.reshape(of_type.grid_shape)
    return found
