"""The balance between copying keys and values and computing on spare rows.

Source   Ramachandran et al., "Striking the Right Balance between Compute and Copy", Eq. 1-9.

A cache that reaches N rows in T allocations has r = N / T rows of room after each. With
C1 = B L D elements per row of keys (and as many of values):

    copies     sum_{i=1..T} 4 C1 (i r) / aBW        = 2 C1 N (T + 1) / aBW          (Eq. 1, 4)
    products   sum_{i=1..T} r 2 C1 (i r) / bC       = C1 N^2 (1 + 1/T) / bC         (Eq. 2, 4)
    total      2 C1 N (T + 1) / aBW + T C0 + C1 N^2 (1 + 1/T) / bC                  (Eq. 5)

Setting the derivative in T to zero (Eq. 6) gives, without C0 (Eq. 7),

    T = sqrt(N C'),    C' = aBW / (2 bC).

Extensions:

    Eq. 8   grouped queries and small types. Copies shrink by G Q (G query heads share a key/value
            head, an element has 1/Q of the bytes), products do not: T = sqrt(N C' G Q).
    Eq. 9   m of k drafts accepted per step. N / m steps, each with k products per row at the rate
            b'C of a matrix product: T = sqrt(N C' (k / m) (b / b')). Where the k rows share one
            traversal, b' = k b, and T = sqrt(N C' / m): the paper's T ~ sqrt(N / m).

How loose ends of the printed equations are read here:

* Units. Eq. 1 counts elements: 4 = keys and values, each read and written. So aBW is in elements
  moved per second, reads and writes counted: bytes per second over the bytes of an element.
* Eq. 2 counts multiply-adds as one operation (the paper's footnote), so bC is multiply-adds per
  second. A rate in FLOP/s that counts two per multiply-add makes T too small by sqrt(2).
* Eq. 1 charges a copy of the whole new tensor, (i+1) r rows, although only i r rows are copied and
  the rest are zeroed. Charging i r instead turns T + 1 into T - 1: the total shifts by a constant
  and the best T stays.
* The text lets i run from 1 to T, the sums from 0 to T - 1; the sums are right.
* Rounding. Among powers of two the cheapest is the nearest in the logarithm, since a T + b / T is
  symmetric in log T; "nearest" is read so.
* Eq. 8 holds where the shared keys are expanded before the product, or the product is bound by
  arithmetic. A kernel bound by reading keys and values and reading each once per group raises bC
  by G Q as well, and the two cancel.

The native kernel computes nothing on spare rows, so Eq. 2 loses its term in 1/T and one allocation
would be best. Spare rows cost it memory, in which other requests could run. Let moving a row
take as long as reading c rows. Then copies add c / r to the time of reading the cache, and spare
rows r / N to its memory. Seconds times bytes, (1 + c / r) (1 + r / N), are least at

    r = sqrt(c N),    T = sqrt(N / c):

the paper's law with C' = 1 / c = aBW / (2 bR), where bR are the elements read per second. With m
tokens a step, rows are read less often: c m stands for c, as in Eq. 9. For short contexts that law
spends more time than their little memory is worth: copies get at most `COPY_SHARE` of the reading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COPY_SHARE = 0.02  # the most that copies may add to the time of reading the cache


@dataclass(frozen=True)
class GrowthCosts:
    """The cost model's parameters of a machine and a workload.

    The defaults describe one element per row. Without `allocation_seconds`, the best number of
    allocations depends only on the ratio of `copy_rate` and `product_rate`.
    """

    copy_rate: float  # aBW: elements moved per second, reads and writes both counted
    product_rate: float  # bC: multiply-adds per second, one query row at a time
    row_elements: float = 1.0  # C1 = B L D: elements of all keys at one position, before sharing
    allocation_seconds: float = 0.0  # C0: fixed cost of one allocation
    group: float = 1.0  # G: query heads that share a key/value head
    shrink: float = 1.0  # Q: bytes of the reference element over bytes of a stored one
    drafts: float = 1.0  # k: rows verified per step
    accepted: float = 1.0  # m: tokens gained per step
    product_gain: float | None = None  # b'/b: speed-up of the k-row product; None: k, fully shared

    @classmethod
    def of_ratio(cls, ratio: float, **workload: float) -> GrowthCosts:
        """Build from C' = aBW / (2 bC) alone, in units where bC is one multiply-add per second."""
        return cls(copy_rate=2 * ratio, product_rate=1.0, **workload)

    @property
    def ratio(self) -> float:
        """C' of Eq. 7: the best T is sqrt(C' N)."""
        return self.copy_rate / (2 * self.product_rate)

    def copy_seconds(self, rows: float) -> float:
        """Time to copy `rows` rows of keys and values (Eq. 1, Eq. 8)."""
        return 4 * self.row_elements * rows / (self.copy_rate * self.group * self.shrink)

    def product_seconds(self, rows: float) -> float:
        """Time per generated token of both attention products over `rows` rows (Eq. 2, Eq. 9)."""
        gain = self.drafts if self.product_gain is None else self.product_gain
        work = self.drafts / (self.accepted * gain)
        return 2 * self.row_elements * rows * work / self.product_rate


def attention_seconds(allocations: float, limit: int, costs: GrowthCosts) -> float:
    """Time of cache growth and attention until `limit` rows are held (Eq. 5, with Eq. 8 and 9).

    `allocations` (T) is between 1 and `limit` (N), in rows; seconds for all tokens together.
    """
    copies = costs.copy_seconds(limit) * (allocations + 1) / 2
    products = costs.product_seconds(limit) * limit * (1 + 1 / allocations) / 2
    return copies + allocations * costs.allocation_seconds + products


def best_allocations(limit: int, costs: GrowthCosts) -> float:
    """Return the T, not rounded, that minimises `attention_seconds` (Eq. 6), within [1, limit]."""
    per_allocation = costs.copy_seconds(limit) / 2 + costs.allocation_seconds
    spare_work = costs.product_seconds(limit) * limit / 2
    return min(max(math.sqrt(spare_work / per_allocation), 1.0), float(limit))


def nearest_power_of_two(value: float) -> int:
    """Return the power of two nearest to `value` >= 1 in the logarithm; halves go up."""
    exponent = math.floor(math.log2(value))
    return int(2 ** (exponent + (value / 2**exponent >= math.sqrt(2))))


def spare_rows(limit: int, allocations: float) -> int:
    """Return r = N / T, rounded to a power of two: the rows that one allocation adds."""
    return min(nearest_power_of_two(max(limit / allocations, 1.0)), limit)


def kernel_rows(limit: int, copy_cost: float, accepted: float = 1.0) -> int:
    """Return r for a kernel that reads the rows in use alone: a power of two, at most `limit`.

    `copy_cost` (c) is how many rows are read in the time in which one is moved, `accepted` (m) the
    tokens gained per step. The seconds that growing adds for each row read are c m / r.
    """
    cost = copy_cost * accepted
    rows = max(math.sqrt(cost * limit), cost / COPY_SHARE, 1.0)
    return min(nearest_power_of_two(rows), limit)
