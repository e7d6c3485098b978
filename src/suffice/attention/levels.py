"""The table by which a coded softmax weighs keys, of one query head or of several.

With x_s = score of key s minus the largest of the row (so far, where blocks are weighed as they
come), a key weighs e^(x_s). A coded softmax replaces that by a table: the code of x is the number
of `borders` that it reaches, and `weights[code]` stands for e^x.
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

    Weights are in units of the largest e^x; the first is that of all keys below every border.
    """

    borders: tuple[float, ...]
    weights: tuple[float, ...]

    def codes(self, x: torch.Tensor) -> torch.Tensor:
        """Return the code of each x, int64."""
        import torch

        return torch.bucketize(x, torch.tensor(self.borders, dtype=x.dtype), right=True)

    def weigh(self, x: torch.Tensor) -> torch.Tensor:
        """Return what stands for e^x; masked entries, x = -infinity, get no code and weigh 0."""
        import torch

        weights = torch.tensor(self.weights, dtype=x.dtype)[self.codes(x)]
        return weights.masked_fill(x == float("-inf"), 0.0)

    def values_read(self, x: torch.Tensor) -> torch.Tensor:
        """Return of which keys the values must be read, bool, for x [T, S] of whole rows.

        A key that reaches no border needs none: it weighs nothing, or what all weigh at least,
        which is left to the sum of all values.
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
    """Refuse a tail that is not known.

    Raises:
        InputError: Not in `TAILS`.
    """
    if tail not in TAILS:
        raise unknown(f"tail of {owner}", tail, TAILS)
