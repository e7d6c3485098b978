"""Growth policies that do not depend on the machine; see `bmc` for one that does.

Growth moves rows and changes no value. N is the context length.
"""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import InputError


@dataclass(frozen=True)
class Iterative:
    """Allocate for every token: no spare row, one copy of the cache per token.

    Source   What transformers' DynamicCache does; the baseline of Ramachandran et al., II-B.
    Exact    always.
    Cost     N (N + 1) / 2 rows copied until N rows are held; no spare row.
    """

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return `needed`."""
        return min(needed, limit)


@dataclass(frozen=True)
class Upfront:
    """Allocate the whole context once: no copy, up to N - 1 spare rows.

    Source   What transformers' StaticCache does; Ramachandran et al., II-C.
    Exact    always.
    Cost     No row copied; N rows held from the start.
    """

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return `limit`."""
        return limit


@dataclass(frozen=True)
class Step:
    """Grow by a fixed number of rows, whatever the context.

    Source   What mlx-lm does, with 256 rows.
    Exact    always.
    Cost     N / rows copies of the cache; at most rows - 1 spare rows.
    Options
        rows  rows of an allocation
    """

    rows: int = 256

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise InputError(f"growth 'step': rows={self.rows} must be at least 1")

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return `needed` rounded up to a whole number of steps."""
        return min(-(-needed // self.rows) * self.rows, limit)


@dataclass(frozen=True)
class Double:
    """Allocate twice the rows held: the classic growth of an array.

    Exact    always.
    Cost     At most 2 N rows copied until N rows are held; up to half of the rows are spare.
    """

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return the larger of `needed` and twice `capacity`."""
        return min(max(needed, 2 * capacity), limit)
