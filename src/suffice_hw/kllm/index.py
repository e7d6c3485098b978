"""KLLM's arithmetic: products by counting pairs of indices, and the search for outliers.

Source   "KLLM: Fast LLM Inference with K-Means Quantization", sections III-B and IV-C.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from suffice.errors import InputError

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


def counted_product(
    codes: Codes, weight_codes: Codes, centroids: Floats, weight_centroids: Floats
) -> Floats:
    """Return the product [N] of a vector and a matrix, both given as codes.

    Args:
        codes: Codes of the vector, [K].
        weight_codes: Codes of the matrix, [N, K].
        centroids: Codebook of the vector, [2^a].
        weight_centroids: Codebook of the matrix, [2^w].
    """
    bins = len(centroids) * len(weight_centroids)
    codebook = np.outer(centroids, weight_centroids).ravel()  # precomputed in the hardware
    pairs = codes * len(weight_centroids) + weight_codes  # Concat
    return np.array([np.bincount(row, minlength=bins) @ codebook for row in pairs])


@dataclass
class Orizuru:
    """Two complete binary trees over the same leaves: one for maxima, one for minima.

    A node stores which child wins. A popped leaf never wins again. `comparisons` counts comparisons
    of two values. The lowest level of the second tree reuses the first tree's, reversed.

    Raises:
        InputError: The number of values is no power of two.
    """

    values: Floats
    comparisons: int = 0
    _winners: dict[int, Codes] = field(default_factory=dict)
    _gone: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.values)
        if count < 2 or count & (count - 1):
            raise InputError(f"values={count}: must be a power of two of at least 2")
        for sign in (1, -1):
            self._gone[sign] = np.zeros(count, bool)
            # node i has the children 2 i and 2 i + 1; leaves are count..2 count - 1
            self._winners[sign] = np.full(2 * count, -1)
            self._winners[sign][count:] = np.arange(count)
            for node in range(count - 1, 0, -1):
                self._settle(sign, node, shared=sign < 0 and node >= count // 2)

    def _settle(self, sign: int, node: int, shared: bool = False) -> None:
        winners, gone = self._winners[sign], self._gone[sign]
        left, right = winners[2 * node], winners[2 * node + 1]
        self.comparisons += not shared
        if gone[left] or gone[right]:
            winners[node] = right if gone[left] else left
        else:
            first = sign * self.values[left] >= sign * self.values[right]
            winners[node] = left if first else right

    def pop(self, sign: int) -> int:
        """Return the index of the largest (`sign` 1) or smallest (-1) remaining value."""
        found = int(self._winners[sign][1])
        self._gone[sign][found] = True
        node = (found + len(self.values)) // 2
        while node:
            self._settle(sign, node)
            node //= 2
        return found

    def outliers(self, count: int) -> tuple[list[int], list[int]]:
        """Return the indices of the `count` largest and of the `count` smallest values.

        Raises:
            InputError: There are fewer values than `count`.
        """
        if not 0 <= count <= len(self.values):
            raise InputError(f"count={count}: must be in [0, {len(self.values)}]")
        return [self.pop(1) for _ in range(count)], [self.pop(-1) for _ in range(count)]
