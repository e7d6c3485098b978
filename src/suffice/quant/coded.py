"""A weight as codes of few bits: one codebook for the layer, scales by row and group.

    w[n, k] ~ scale[n, g] (level[code[n, k]] - zero[n, g]),    g = k // group

K-means weights have no zero point. `rtn` has evenly spaced levels, with a zero point if asymmetric.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from suffice.errors import InputError
from suffice.quant.codebook import borders

__all__ = ["Coded", "Grid", "check_group", "check_weight", "grouped", "stored", "unit_of"]


@dataclass(frozen=True)
class Grid:
    """The values of a weight [N, K]: `levels` [C], ascending; `scale` and `zero` [N, K/group].

    The last group of a row may be shorter.
    """

    levels: torch.Tensor
    scale: torch.Tensor
    group: int
    zero: torch.Tensor | None = None

    @cached_property
    def _inverse(self) -> torch.Tensor:
        return torch.where(self.scale > 0, 1 / self.scale, torch.zeros_like(self.scale))

    @cached_property
    def _borders(self) -> torch.Tensor:
        return borders(self.levels)

    def nearest_column(self, values: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes and values [N] nearest to a column [N] of a group."""
        normal = values * self._inverse[:, group]
        zero = None if self.zero is None else self.zero[:, group]
        codes = torch.bucketize(normal if zero is None else normal + zero, self._borders)
        level = self.levels[codes]
        return codes, (level if zero is None else level - zero) * self.scale[:, group]

    def values(self, codes: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """Return the values of codes [N, B] of columns in `groups` [B]."""
        levels = self.levels[codes.int()]
        if self.zero is not None:
            levels = levels - self.zero[:, groups]
        return levels * self.scale[:, groups]

    def nearest(self, weight: torch.Tensor) -> Coded:
        """Return a weight [N, K] with each entry rounded to the nearest value."""
        groups = self.groups(weight.shape[1])
        normal = weight * self._inverse[:, groups]
        if self.zero is not None:
            normal = normal + self.zero[:, groups]
        return Coded(torch.bucketize(normal, self._borders).to(torch.uint8), self)

    def groups(self, columns: int) -> torch.Tensor:
        """Return the group of each column, [K]."""
        return torch.arange(columns) // self.group


@dataclass(frozen=True)
class Coded:
    """A weight [N, K] as codes uint8 [N, K] of values on a grid."""

    codes: torch.Tensor
    grid: Grid

    def decode(self) -> torch.Tensor:
        """Return the weight [N, K] that the codes represent."""
        return self.grid.values(self.codes, self.grid.groups(self.codes.shape[1]))


def grouped(values: torch.Tensor, group: int) -> torch.Tensor:
    """Cut rows [N, K] into groups [N, K/group, group]; the last one is padded with zeros."""
    missing = -values.shape[1] % group
    padded = torch.nn.functional.pad(values, (0, missing))
    return padded.view(len(values), -1, group)


def unit_of(bits: int) -> int:
    """Return the number of columns that are stored together; groups are whole units."""
    return 8 if bits == 4 else 32


def check_group(method: str, w: int, group: int | None) -> None:
    """Refuse a `group` in which codes of `w` bits cannot be stored.

    Raises:
        InputError: It is not a multiple of whole units.
    """
    unit = unit_of(w)
    if group is not None and (group < unit or group % unit):
        raise InputError(
            f"{method}: group={group}: must be a multiple of {unit} with bits={w}, or none"
        )


def group_of(group: int | None, weight: torch.Tensor) -> int:
    """Return the number of inputs of a weight [N, K] that share a scale: at most a row."""
    return min(group or weight.shape[1], weight.shape[1])


def check_weight(weight: torch.Tensor) -> None:
    """Refuse a weight that is not a matrix of finite numbers.

    Raises:
        InputError: It is not such a matrix.
    """
    if weight.dim() != 2 or not weight.numel():
        raise InputError(f"a weight of shape {list(weight.shape)}: must be [N, K], not empty")
    if not torch.isfinite(weight).all():
        raise InputError("a weight has NaN or infinite entries; all must be finite")


def stored(grid: Grid) -> Grid:
    """Return a grid with its scales rounded to float16.

    Raises:
        InputError: A scale is too large.
    """
    scale = grid.scale.half().float()
    if not torch.isfinite(scale).all():
        raise InputError(
            f"a weight needs a scale of {float(grid.scale.max()):.3g}; float16 holds up to 65504"
        )
    return replace(grid, scale=scale)
