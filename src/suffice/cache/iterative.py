"""Allocate for every token: no spare row, one copy of the cache per token.

Source   What transformers' DynamicCache does; the baseline of Ramachandran et al., section II-B.
Exact    always.
Cost     N (N + 1) / 2 rows copied until N rows are held; no spare row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Iterative:
    """Hold exactly the rows that are used."""

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return `needed`."""
        return min(needed, limit)
