"""Double: the classic growth of an array.

Exact    always.
Cost     At most 2 N rows copied until N rows are held; up to half of the rows are spare.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Double:
    """Allocate twice the rows held, or what is needed if that is more."""

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return the larger of `needed` and twice `capacity`."""
        return min(max(needed, 2 * capacity), limit)
