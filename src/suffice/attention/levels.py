"""Softmax tables: the weights of a coded softmax, for one query head or several.

Let x_s be the score of key s minus the largest score of the row (the largest so far, if blocks are
weighed one by one). Its weight is e^(x_s). A coded softmax replaces it by a table: the code of x is
the number of `borders` that x reaches, and `weights[code]` replaces e^x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suffice.errors import unknown

TAILS = ("clip", "flush")


@dataclass(frozen=True)
class Levels:
    """The table of one query head: 3, 7 or 15 ascending `borders` (in nats) and their `weights`.

    Weights are in units of the largest e^x; the first is for keys below every border.
    """

    borders: tuple[float, ...]
    weights: tuple[float, ...]

    def codes(self, x: np.ndarray) -> np.ndarray:
        """Return the code of each x, int64."""
        codes: np.ndarray = np.searchsorted(np.array(self.borders, x.dtype), x, side="right")
        return codes

    def weigh(self, x: np.ndarray) -> np.ndarray:
        """Return the weights of x; masked entries, x = -infinity, have no code and weight 0."""
        weights = np.array(self.weights, x.dtype)[self.codes(x)]
        return np.where(x == -np.inf, 0.0, weights)

    def values_read(self, x: np.ndarray) -> np.ndarray:
        """Return whether the value of each key must be read, bool, for x [T, S] of whole rows.

        Values of keys with code 0 are not needed: the weight is 0, or the base weight of all keys,
        which the sum of all values accounts for.
        """
        read: np.ndarray = self.codes(x) > 0
        return read


def of_group(levels: Sequence[Levels] | None, group: int, rows: int) -> Sequence[Levels] | None:
    """Return the levels of the `rows` query heads of a key/value head."""
    return None if levels is None else levels[group * rows : (group + 1) * rows]


def weigh(x: np.ndarray, levels: Sequence[Levels] | None) -> np.ndarray:
    """Return the weights of x [R, S], head by head with its levels (None: e^x)."""
    if levels is not None:
        return np.stack([own.weigh(row) for own, row in zip(levels, x, strict=True)])
    weights: np.ndarray = np.exp(x)
    return weights


def check_tail(owner: str, tail: str) -> None:
    """Refuse an unknown tail.

    Raises:
        InputError: The tail is not in `TAILS`.
    """
    if tail not in TAILS:
        raise unknown(f"tail of {owner}", tail, TAILS)
