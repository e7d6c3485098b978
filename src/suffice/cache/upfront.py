"""Allocate the whole context once: no copy, up to N - 1 spare rows.

Source   What transformers' StaticCache does; Ramachandran et al., section II-C.
Exact    always.
Cost     No row copied; N rows held from the start.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Upfront:
    """Hold the whole context from the first row on."""

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return `limit`."""
        return limit
