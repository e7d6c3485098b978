"""Orizuru: the k greatest and the k least of N values, by two tournament trees over shared leaves.

The trees share the leaves and the comparisons of the first level; one tree reads their results
reversed. A pop follows the winners from the root to a leaf, masks the leaf, and replays the matches
on the way up:

    comparisons <= 1.5 N + 2 k log2 N        N - 1 and N/2 - 1 to set up, log2 N a pop

Of equal values, the one with the lower index counts as the greater. So all values have one order,
with the greatest at one end and the least at the other.

Source   KLLM, section IV-C and Fig. 7 (2507.23035).
Exact    always: the selection equals that of a sort.
Native   csrc/kernels/outliers.inl: winners of groups of 256 values, a few vectors compared a pop
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from suffice.errors import InputError


@dataclass(frozen=True)
class Outliers:
    """Indices of the k greatest, greatest first, and of the k least, least first."""

    greatest: list[int]
    least: list[int]
    comparisons: int | None = None  # counted by the reference


def count_of(size: int, share: float) -> int:
    """Return the number of values, out of `size`, kept at each end: `share` of them, at least one.

    With share 0 there are none.

    Raises:
        InputError: The share is not within 0..0.5.
    """
    if not 0 <= share <= 0.5:
        raise InputError(f"outliers: a share of {share} at each end; allowed: 0..0.5")
    return min(max(1, round(share * size)), size // 2) if share else 0


def reference(values: np.ndarray, count: int) -> Outliers:
    """Return the `count` greatest and least of values [N], by the two trees.

    Raises:
        InputError: A value that is not finite, or more to find than there are values.
    """
    check(values, count)
    trees = Orizuru(values.tolist())
    greatest = [trees.pop_greatest() for _ in range(count)]
    least = [trees.pop_least() for _ in range(count)]
    return Outliers(greatest, least, trees.comparisons)


def check(values: np.ndarray, count: int) -> None:
    """Refuse values whose `count` greatest and least cannot be found.

    Raises:
        InputError: They are no row of finite numbers, or fewer than that.
    """
    if values.ndim != 1:
        raise InputError(f"outliers: shape {list(values.shape)}; allowed: [N]")
    if not np.isfinite(values).all():
        raise InputError("outliers: a value is NaN or infinite; all must be finite")
    if not 0 <= 2 * count <= len(values):
        raise InputError(
            f"outliers: {count} at each end of {len(values)} values; allowed: 0..{len(values) // 2}"
        )


class Orizuru:
    """The two trees. Node 1 is the root, node i has the children 2 i and 2 i + 1, leaves follow.

    `winner[node]` is the leaf that a node's bits lead to. A width that is not a power of two is
    padded with leaves that are masked from the start; matches against those are skipped.
    """

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.leaves = 1 << max(len(values) - 1, 1).bit_length()
        self.comparisons = 0
        self._greatest = _Tree(self, sign=1)
        self._least = _Tree(self, sign=-1)
        first = [self._match(pair) for pair in range(self.leaves // 2, self.leaves)]
        self._greatest.set_up(first)
        self._least.set_up([None if won is None else not won for won in first])

    def pop_greatest(self) -> int:
        """Return the index of the greatest remaining value in the max tree."""
        return self._greatest.pop()

    def pop_least(self) -> int:
        """Return the index of the least remaining value in the min tree."""
        return self._least.pop()

    def greater(self, a: int, b: int) -> bool:
        """Compare the values of two leaves, the first of lower index."""
        self.comparisons += 1
        return self.values[a] >= self.values[b]

    def _match(self, node: int) -> bool | None:
        """Return whether a node's left leaf is the greater; None: there is no right one."""
        left = 2 * node - self.leaves
        return self.greater(left, left + 1) if left + 1 < len(self.values) else None


class _Tree:
    """One of the trees; `sign` is 1 where the greater value wins, -1 where the lesser does."""

    def __init__(self, both: Orizuru, sign: int) -> None:
        self._both, self._sign = both, sign
        self._winner: list[int | None] = [None] * (2 * both.leaves)
        for leaf in range(len(both.values)):
            self._winner[both.leaves + leaf] = leaf

    def set_up(self, first: list[bool | None]) -> None:
        """Play all matches; those of the first level have their results already."""
        half = self._both.leaves // 2
        for pair, left_wins in enumerate(first):
            left = self._winner[2 * (half + pair)]
            right = self._winner[2 * (half + pair) + 1]
            self._winner[half + pair] = left if left_wins or right is None else right
        for node in reversed(range(1, half)):
            self._play(node)

    def pop(self) -> int:
        """Remove the winner and replay the matches above it."""
        leaf = self._winner[1]
        assert leaf is not None, "every value has been popped"
        node = self._both.leaves + leaf
        self._winner[node] = None
        while node > 1:
            node //= 2
            self._play(node)
        return leaf

    def _play(self, node: int) -> None:
        left, right = self._winner[2 * node], self._winner[2 * node + 1]
        if left is None or right is None:
            self._winner[node] = right if left is None else left
            return
        left_wins = self._both.greater(left, right) == (self._sign > 0)
        self._winner[node] = left if left_wins else right
