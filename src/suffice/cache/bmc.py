"""Grow by r rows at a time, with r from the balance of copying and computing.

Source   Ramachandran et al., "Striking the Right Balance between Compute and Copy", section V.
         The paper's r is `rows`, its C' is `ratio`; Eq. 5-9 are in cost.py.
Differs  r is rounded to a power of two, not the number of allocations. The engine's kernel computes
         nothing on spare rows, which the paper's balance rests on: there r balances copies and the
         memory of spare rows, unless `ratio` is given (cost.py).
Exact    always: growth moves rows and changes no value.
Cost     N / r copies of the cache; at most r - 1 spare rows.
Example  bmc:rows=128
Options
    rows      rows of an allocation; none: from the context length and the balance (Eq. 5)
    ratio     C' of Eq. 7: r by the paper's law; none: measured, and in the engine its own law
    copy_cost  rows read in the time in which one is moved (the engine's law); none: measured
    group     query heads that share a key (G of Eq. 8); none: the engine's
    shrink    4 bytes over the bytes of a stored element (Q of Eq. 8); none: the engine's
    drafts    rows verified in a step (k of Eq. 9)
    accepted  tokens gained in a step (m of Eq. 9); none: as measured so far
"""

from __future__ import annotations

from dataclasses import dataclass

from suffice.cache import machine
from suffice.cache.cost import (
    GrowthCosts,
    best_allocations,
    kernel_rows,
    nearest_power_of_two,
    spare_rows,
)
from suffice.errors import InputError

FEWEST = 64  # rows of an allocation by the engine's law, unless the context has fewer


@dataclass(frozen=True)
class BMC:
    """Allocate every `rows` rows; `rows=None` derives them from the context length.

    If None, an engine sets `copy_cost`, `group` and `shrink` from its machine and kernel, and
    `accepted` from the drafts accepted so far. Outside an engine `ratio` is the machine's, and the
    last three count as 1.
    """

    rows: int | None = None  # r; None: from Eq. 7 with the fields below
    ratio: float | None = None  # C' = aBW / (2 bC); None: as measured on this machine
    copy_cost: float | None = None  # c of cost.py; None: the paper's balance
    group: int | None = None  # G of Eq. 8: query heads that share a key/value head
    shrink: float | None = None  # Q of Eq. 8: 4 bytes over the bytes of a stored element
    drafts: int = 1  # k of Eq. 9: rows verified in a step
    accepted: float | None = None  # m of Eq. 9: tokens gained in a step

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise InputError(f"growth 'bmc': rows={self.rows} must be at least 1")
        for name in ("ratio", "copy_cost", "group", "shrink", "drafts", "accepted"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"growth 'bmc': {name}={value} must be positive and finite")

    def allocations(self, limit: int) -> int:
        """Return T, the allocations for `limit` rows, rounded to a power of two as in the paper."""
        return nearest_power_of_two(best_allocations(limit, self._costs()))

    def spare(self, limit: int) -> int:
        """Return r, the rows an allocation adds in a context of `limit` rows."""
        if self.rows is not None:
            return self.rows
        if self._weighs_memory:
            assert self.copy_cost is not None
            return kernel_rows(limit, self.copy_cost, self.accepted or 1.0)
        return spare_rows(limit, best_allocations(limit, self._costs()))

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return `needed` rows rounded up to a whole number of steps of r.

        By the engine's law a step has at most as many rows as are needed, or FEWEST: short texts,
        and caches from which a policy evicts, stay small.
        """
        rows = self.spare(limit)
        if self._weighs_memory:
            rows = min(rows, max(FEWEST, 1 << max(needed.bit_length() - 1, 0)))
        return min(-(-needed // rows) * rows, limit)

    @property
    def _weighs_memory(self) -> bool:
        return self.rows is None and self.ratio is None and self.copy_cost is not None

    def _costs(self) -> GrowthCosts:
        ratio = machine.load_or_default().ratio if self.ratio is None else self.ratio
        return GrowthCosts.of_ratio(
            ratio,
            group=self.group or 1,
            shrink=self.shrink or 1.0,
            drafts=self.drafts,
            accepted=self.accepted or 1.0,
        )
