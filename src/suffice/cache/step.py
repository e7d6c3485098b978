"""Grow by a fixed number of rows, whatever the context.

Source   What mlx-lm does, with 256 rows.
Exact    always.
Cost     N / rows copies of the cache; at most rows - 1 spare rows.
Options
    rows  rows of an allocation
"""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import InputError


@dataclass(frozen=True)
class Step:
    """Allocate every `rows` rows."""

    rows: int = 256

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise InputError(f"growth 'step': rows={self.rows} must be at least 1")

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return `needed` rounded up to a whole number of steps."""
        return min(-(-needed // self.rows) * self.rows, limit)
