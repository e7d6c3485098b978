"""Softmax tables: the weights of a coded softmax, for one query head or several.

Let x_s be the score of key s minus the largest score of the row (the largest so far, if blocks are
weighed one by one). Its weight is e^(x_s). A coded softmax replaces it by a table: the code of x is
the number of `borders` that x reaches, and `weights[code]` replaces e^x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.errors import unknown

if TYPE_CHECKING:
    import torch

TAILS = ("clip", "flush")


@dataclass(frozen=True)
class Levels:
    """The table of one query head: 3, 7 or 15 ascending `borders` (in nats) and their `weights`.

    Weights are in units of the largest e^x; the first is for keys below every border.
    """

    borders: tuple[float, ...]
    weights: tuple[float, ...]

    def codes(self, x: torch.Tensor) -> torch.Tensor:
        """Return the code of each x, int64."""
        import torch

        return torch.bucketize(x, torch.tensor(self.borders, dtype=x.dtype), right=True)

    def weigh(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weights of x; masked entries, x = -infinity, have no code and weight 0."""
        import torch

        weights = torch.tensor(self.weights, dtype=x.dtype)[self.codes(x)]
        return weights.masked_fill(x == float("-inf"), 0.0)

    def values_read(self, x: torch.Tensor) -> torch.Tensor:
        """Return whether the value of each key must be read, bool, for x [T, S] of whole rows.

        Values of keys with code 0 are not needed: the weight is 0, or the base weight of all keys,
        which the sum of all values accounts for.
        """
        return self.codes(x) > 0


def of_group(levels: Sequence[Levels] | None, group: int, rows: int) -> Sequence[Levels] | None:
    """Return the levels of the `rows` query heads of a key/value head."""
    return None if levels is None else levels[group * rows : (group + 1) * rows]


def weigh(x: torch.Tensor, levels: Sequence[Levels] | None) -> torch.Tensor:
    """Return the weights of x [R, S], head by head with its levels (None: e^x)."""
    import torch

    if levels is None:
        return x.exp()
    return torch.stack([own.weigh(row) for own, row in zip(levels, x, strict=True)])


def check_tail(owner: str, tail: str) -> None:
    """Refuse an unknown tail.

    Raises:
        InputError: The tail is not in `TAILS`.
    """
    if tail not in TAILS:
        raise unknown(f"tail of {owner}", tail, TAILS)
