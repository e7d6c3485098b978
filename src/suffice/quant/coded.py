"""A weight as codes of few bits: one codebook for the layer, scales by row and group.

    w[n, k] ~ scale[n, g] (level[code[n, k]] - zero[n, g]),    g = k // group

K-means weights have no zero point. `rtn` has evenly spaced levels, with a zero point if asymmetric.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from suffice.errors import InputError
from suffice.quant.code_layout import UNIT
from suffice.quant.codebook import borders, intervals

BLOCK = 1 << 16  # values that are worked on at a time


@dataclass(frozen=True)
class Grid:
    """The values of a weight [N, K]: `levels` [C], ascending; `scale` and `zero` [N, K/group].

    The last group of a row may be shorter.
    """

    levels: np.ndarray
    scale: np.ndarray
    group: int
    zero: np.ndarray | None = None

    @cached_property
    def _inverse(self) -> np.ndarray:
        return inverse_of(self.scale)

    @cached_property
    def _borders(self) -> np.ndarray:
        return borders(self.levels)

    def nearest_column(self, values: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and values [N] nearest to a column [N] of a group."""
        normal = values * self._inverse[:, group]
        zero = None if self.zero is None else self.zero[:, group]
        codes = intervals(normal if zero is None else normal + zero, self._borders)
        level = self.levels[codes]
        return codes, (level if zero is None else level - zero) * self.scale[:, group]

    def values(self, codes: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Return the values of codes [N, B] of columns in `groups` [B]."""
        levels = self.levels[codes]
        if self.zero is not None:
            levels = levels - self.zero[:, groups]
        values: np.ndarray = levels * self.scale[:, groups]
        return values

    def nearest(self, weight: np.ndarray) -> Coded:
        """Return a weight [N, K] with each entry rounded to the nearest value."""
        codes = np.empty(weight.shape, np.uint8)
        for g, begin in enumerate(range(0, weight.shape[1], self.group)):
            own = slice(begin, begin + self.group)
            normal = weight[:, own] * self._inverse[:, g, None]
            if self.zero is not None:
                normal += self.zero[:, g, None]
            codes[:, own] = intervals(normal, self._borders)
        return Coded(codes, self)

    def groups(self, columns: int) -> np.ndarray:
        """Return the group of each column, [K]."""
        return np.arange(columns) // self.group


@dataclass(frozen=True)
class Coded:
    """A weight [N, K] as codes uint8 [N, K] of values on a grid."""

    codes: np.ndarray
    grid: Grid

    def decode(self) -> np.ndarray:
        """Return the weight [N, K] that the codes represent."""
        return self.grid.values(self.codes, self.grid.groups(self.codes.shape[1]))


def grouped(values: np.ndarray, group: int) -> np.ndarray:
    """Cut rows [N, K] into groups [N, K/group, group]; the last one is padded with zeros."""
    missing = -values.shape[1] % group
    padded = np.pad(values, ((0, 0), (0, missing))) if missing else values
    return padded.reshape(len(values), -1, group)


def row_blocks(values: np.ndarray) -> Iterator[slice]:
    """Yield slices of the rows of [N, K], few enough at a time to stay in the cache."""
    rows = max(1, BLOCK // values.shape[1])
    for begin in range(0, len(values), rows):
        yield slice(begin, begin + rows)


def check_group(method: str, group: int | None) -> None:
    """Refuse a `group` in which codes cannot be stored.

    Raises:
        InputError: It is not a multiple of whole units.
    """
    if group is not None and (group < UNIT or group % UNIT):
        nearest = max(UNIT, round(group / UNIT) * UNIT)
        raise InputError(
            f"{method}: group={group}: must be a multiple of {UNIT}, such as {nearest}, or none"
        )


def group_of(group: int | None, weight: np.ndarray) -> int:
    """Return the number of inputs of a weight [N, K] that share a scale: at most a row."""
    columns: int = weight.shape[1]
    return min(group or columns, columns)


def check_weight(weight: np.ndarray) -> None:
    """Refuse a weight that is not a matrix of finite numbers.

    Raises:
        InputError: It is not such a matrix.
    """
    if weight.ndim != 2 or not weight.size:
        raise InputError(f"a weight of shape {list(weight.shape)}: must be [N, K], not empty")
    if not np.isfinite(weight).all():
        raise InputError("a weight has NaN or infinite entries; all must be finite")


def inverse_of(scale: np.ndarray) -> np.ndarray:
    """Return 1 / scale, or 0 where a scale is 0 or so small that its inverse may be infinite."""
    normal = np.abs(scale) >= np.finfo(scale.dtype).smallest_normal
    inverse: np.ndarray = np.divide(1, scale, out=np.zeros_like(scale), where=normal)
    return inverse


def halves(scale: np.ndarray) -> np.ndarray:
    """Return scales rounded to float16.

    Raises:
        InputError: A scale is too large.
    """
    with np.errstate(over="ignore"):  # refused below
        found = scale.astype(np.float16)
    if not np.isfinite(found).all():
        raise InputError(
            f"a weight needs a scale of {float(np.abs(scale).max()):.3g}; float16 holds up to 65504"
        )
    return found


def stored(grid: Grid) -> Grid:
    """Return a grid with its scales rounded to float16.

    Raises:
        InputError: A scale is too large.
    """
    return replace(grid, scale=halves(grid.scale).astype(np.float32))
