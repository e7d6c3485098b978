"""Codes with nested scales: the scale of each group is found by trial, and stored in a byte.

    w[n, k] ~ scale[n, g] level[code[n, k]] + minimum[n, g],    g = k // group

Without minima, each trial takes a share of the group's value of greatest magnitude as its scale,
rounds the group to the nearest levels, and has the scale of least squares for these:

    scale = sum w l / sum l^2,    which lessens the error of zeros by (sum w l)^2 / sum l^2

With minima, which are at most 0, it takes the range of the values over a share, and has the scale
and the minimum of least squares. The best trial counts. Then the scales of 256 columns become
bytes of at most 127 times a float16, and so do the minima, of at most 255; the codes are those
nearest to the values that remain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from suffice.quant.code_layout import CodeLayout
from suffice.quant.code_panels import Numbers
from suffice.quant.codebook import codes_of
from suffice.quant.coded import Grid, grouped, inverse_of, row_blocks

_SCALES, _MINIMA = 127, 255  # the greatest numbers in bytes
_LEAST = np.float32(1e-30)
_MORE = np.float32(1.0000005)  # more than sums are rounded by: a grid keeps its first scale
_NOTHING = np.float32(1e-20)  # the greatest magnitude of a group that counts as zeros


@dataclass(frozen=True, eq=False)
class Rounding:
    """A layout, its ascending whole `levels` and the `shares` that are tried."""

    layout: CodeLayout
    levels: np.ndarray
    shares: np.ndarray


@dataclass(frozen=True)
class Rounded:
    """Codes uint8 [N, K], the numbers of their groups, and the sum of the squared errors."""

    codes: np.ndarray
    numbers: Numbers
    lost: float


# Rounds a weight float32 [N, K] by errors with weights float32 [K], or None.
RoundGroups = Callable[[np.ndarray, Rounding, np.ndarray | None], Rounded]


@dataclass(frozen=True)
class NestedGrid(Grid):
    """A grid whose scales are those of `numbers`."""

    numbers: Numbers = field(kw_only=True)

    @classmethod
    def of(cls, rounding: Rounding, numbers: Numbers) -> NestedGrid:
        """Return the grid of rounded groups without minima."""
        assert numbers.outer_scales is not None
        group = rounding.layout.group
        scale = _spread(numbers.outer_scales, rounding.layout, numbers.scales)
        return cls(rounding.levels, scale, group, numbers=numbers)


def round_groups(weight: np.ndarray, by: Rounding, importance: np.ndarray | None) -> Rounded:
    """Return a weight float32 [N, K] in codes; `importance` [K] weighs its columns' errors."""
    group, minima = by.layout.group, by.layout.minima == "nested"
    cost = np.ones(weight.shape[1], np.float32) if importance is None else importance
    costs = grouped(cost[None], group)
    parts = grouped(weight, group)
    scale = np.empty(parts.shape[:2], np.float32)
    minimum = np.zeros_like(scale)
    for own in row_blocks(weight):
        if minima:
            scale[own], minimum[own] = _scale_and_minimum(parts[own], costs, by)
        else:
            scale[own] = signed_scale(parts[own], costs, by)
    inner, outer = _nested(scale, by.layout, _SCALES)
    below, outer_minima = _nested(-minimum, by.layout, _MINIMA)
    scale, minimum = _spread(outer, by.layout, inner), -_spread(outer_minima, by.layout, below)
    normal = (parts - minimum[..., None]) * inverse_of(scale)[..., None]
    codes = codes_of(normal, by.levels).reshape(len(weight), -1)[:, : weight.shape[1]]
    numbers = Numbers(inner.astype(np.int8), None, outer, outer_minima)
    if minima:
        numbers = Numbers(inner.astype(np.int8), below.astype(np.uint8), outer, outer_minima)
    columns = np.arange(weight.shape[1]) // group
    error = weight - (scale[:, columns] * by.levels[codes] + minimum[:, columns])
    return Rounded(codes, numbers, float(np.square(error).sum(dtype=np.float64)))


def signed_scale(parts: np.ndarray, cost: np.ndarray, by: Rounding) -> np.ndarray:
    """Return the best tried scales [N, G] of groups [N, G, group], without minima."""
    at = np.abs(parts).argmax(-1)[..., None]
    extreme = np.take_along_axis(parts, at, -1)[..., 0]
    best, scale = np.full(extreme.shape, -1, np.float32), np.zeros_like(extreme)
    for share in by.shares:
        step = np.where(np.abs(extreme) > _NOTHING, extreme * share, 0)
        levels = by.levels[codes_of(parts * inverse_of(step)[..., None], by.levels)]
        product = (cost * levels * parts).sum(-1)
        fitted = product / np.maximum((cost * levels * levels).sum(-1), _LEAST)
        better = product * fitted > best * _MORE
        scale[better], best[better] = fitted[better], (product * fitted)[better]
    return scale


def _scale_and_minimum(
    parts: np.ndarray, cost: np.ndarray, by: Rounding
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best tried scales and minima [N, G] of groups [N, G, group]."""
    least = np.minimum(parts.min(-1), 0)
    extent = np.maximum(parts.max(-1) - least, _NOTHING)
    mass, total = cost.sum(-1), (cost * parts).sum(-1)
    best = np.full(least.shape, np.inf, np.float32)
    scale, minimum = np.zeros_like(least), np.zeros_like(least)
    for share in by.shares:
        normal = (parts - least[..., None]) * (share / extent)[..., None]
        levels = by.levels[codes_of(normal, by.levels)]
        linear, square = (cost * levels).sum(-1), (cost * levels * levels).sum(-1)
        product = (cost * levels * parts).sum(-1)
        spread = mass * square - linear * linear
        apart, safe = spread > _LEAST, np.maximum(spread, _LEAST)  # not apart: all codes are equal
        fitted = np.where(apart, (mass * product - total * linear) / safe, 0)
        below = np.where(
            apart,
            (total * square - linear * product) / safe,
            total / np.maximum(mass, _LEAST),
        )
        positive = below > 0
        fitted = np.where(positive, product / np.maximum(square, _LEAST), fitted)
        below = np.where(positive, 0, below)
        lost = fitted * (fitted * square + 2 * (below * linear - product)) + below * (
            below * mass - 2 * total
        )
        better = lost < best
        for kept, found in ((scale, fitted), (minimum, below), (best, lost)):
            kept[better] = found[better]
    return scale, minimum


def _nested(values: np.ndarray, layout: CodeLayout, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return whole numbers of at most `most` [N, G], and the float16 factors of spans [N, S].

    A factor is the least float16 by which no number exceeds `most`.
    """
    spans = grouped(values, layout.groups_in_span)
    wanted = np.abs(spans).max(-1) / np.float32(most)
    outer = wanted.astype(np.float16)
    low = outer.astype(np.float32) < wanted
    outer[low] = np.nextafter(outer[low], np.float16(np.inf))
    factor = outer.astype(np.float32)[..., None]
    whole = np.rint(np.divide(spans, factor, out=np.zeros_like(spans), where=factor > 0))
    return whole.reshape(len(values), -1)[:, : values.shape[1]], outer


def _spread(outer: np.ndarray, layout: CodeLayout, inner: np.ndarray) -> np.ndarray:
    """Return the numbers of groups, float32 [N, G]."""
    factor = np.repeat(outer.astype(np.float32), layout.groups_in_span, 1)
    return factor[:, : inner.shape[1]] * inner.astype(np.float32)
