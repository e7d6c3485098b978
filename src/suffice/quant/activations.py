"""Activations of a token by codebook: K-means centroids for the many, outliers as they are.

    x[k] ~ scale[g] c[code[k]],    scale[g] = max |x| over the inliers in group g = k // group

A site, the input that some layers share, has one codebook of 2^a normalised centroids, learned
beforehand. A token has one scale in the paper, or one for each `group` of its values. Outliers are
the share of a token's values that are greatest and least: found online (`kllm`), or what lies
beyond two thresholds found beforehand (`KLLM-S`). They keep the code that is nearest, so that the
product over all codes needs no mask, and what is missing, (x - scale c) W[:, k], is added for these
few.

Source   KLLM, sections II-A and III-A (2507.23035); codes for outliers, too: its version 4. Groups:
         this project's.
Bound    |x - q| <= scale * half the widest gap of the codebook, 0 for outliers.
Exact    as many distinct normalised inliers as centroids, or every value an outlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from suffice.errors import InputError
from suffice.quant.codebook import codebook, codes_of
from suffice.quant.outliers import count_of
from suffice.quant.panels import ROWS

__all__ = ["ActivationRows", "Activations", "Site", "check_input_group"]


def check_input_group(what: str, group: int | None) -> None:
    """Refuse a number of inputs that cannot share a scale of their own: no whole panels.

    Raises:
        InputError: It is no multiple of 16.
    """
    if group is not None and (group < ROWS or group % ROWS):
        raise InputError(f"{what}={group}; must be a multiple of {ROWS}, or none")


@dataclass(frozen=True)
class Activations:
    """One token's values [K]: `codes` of `levels`, and outliers by index and value.

    `scales` [G] are those of `group` values each, one of all of them where `group` is None.
    """

    codes: torch.Tensor
    levels: torch.Tensor
    scales: torch.Tensor
    places: torch.Tensor
    kept: torch.Tensor
    group: int | None = None

    @property
    def scale(self) -> float:
        """The scale of all values."""
        (only,) = self.scales.tolist()
        return float(only)

    @property
    def spread(self) -> torch.Tensor:
        """The scale of each value, [K]."""
        return _spread(self.scales, self.group, len(self.codes))

    @property
    def dense(self) -> torch.Tensor:
        """What the codes stand for, [K]."""
        return self.spread * self.levels[self.codes.int()]

    @property
    def residual(self) -> torch.Tensor:
        """What the codes miss of each outlier."""
        return self.kept - self.dense[self.places]

    def decode(self) -> torch.Tensor:
        """Return the values that all of it stands for, [K]."""
        values = self.dense
        values[self.places] = self.kept
        return values


@dataclass(frozen=True)
class ActivationRows:
    """Tokens' values [T, K]: the `centroids` of their codes, the scale of each, and the whole.

    What is `rounded` is scale times centroid, but for outliers. `group` values share a scale; None:
    all of a token.
    """

    centroids: torch.Tensor
    scale: torch.Tensor
    rounded: torch.Tensor
    group: int | None = None


@dataclass(frozen=True)
class Site:
    """How the activations of one site are coded.

    `share` of the values at each end are outliers, unless `thresholds`, the least and the greatest
    inlier, say what is one. `group` values share a scale; None: all of a token.
    """

    levels: torch.Tensor
    share: float = 0.005
    thresholds: tuple[float, float] | None = None
    group: int | None = None

    @classmethod
    def learn(
        cls,
        values: torch.Tensor,
        bits: int,
        share: float = 0.005,
        importance: torch.Tensor | None = None,
        *,
        offline: bool = False,
        group: int | None = None,
    ) -> Site:
        """Learn the codebook from tokens [T, K]: K-means of all inliers, each group normalised.

        `importance` [T, K], Fisher information say, counts times scale^2. `offline`: the thresholds
        are the quantiles of all values, and hold for every token.

        Raises:
            InputError: A value is not finite, or the share is not within 0..0.5.
        """
        if importance is None:
            importance = torch.ones_like(values)
        thresholds = None
        if offline:
            low, high = torch.quantile(values.double(), torch.tensor([share, 1 - share]).double())
            thresholds = float(low), float(high)
        site = cls(torch.zeros(1), share, thresholds, group)
        inlier, scale = site._inliers(values)
        normal = values / torch.where(scale > 0, scale, 1.0)
        weight = importance * scale.square() * inlier
        if not (weight > 0).any():  # a site of zeros
            weight = torch.ones_like(weight)
        return replace(site, levels=codebook(normal, weight, 2**bits))

    def outliers(self, row: torch.Tensor) -> torch.Tensor:
        """Return the indices of a token's outliers, ascending."""
        if self.thresholds is not None:
            low, high = self.thresholds
            return torch.nonzero((row < low) | (row > high))[:, 0]
        return _ends(row[None], count_of(len(row), self.share))[0].sort().values

    def encode(self, row: torch.Tensor) -> Activations:
        """Return the code of a token's values [K].

        Raises:
            InputError: A value is not finite.
        """
        _check(row)
        places = self.outliers(row)
        inlier = torch.ones(len(row), dtype=torch.bool)
        inlier[places] = False
        scales = self._scales(torch.where(inlier, row.abs(), 0.0))
        spread = _spread(scales, self.group, len(row))
        codes = codes_of(row / torch.where(spread > 0, spread, 1.0), self.levels)
        return Activations(codes, self.levels, scales, places, row[places], self.group)

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Return what tokens' values [T, K] stand for once coded: `encode` and `decode` of each.

        Raises:
            InputError: A value is not finite.
        """
        return self.rows(values).rounded

    def rows(self, values: torch.Tensor) -> ActivationRows:
        """Return tokens' values [T, K] as their codes and scales say.

        Raises:
            InputError: A value is not finite.
        """
        _check(values)
        inlier, scale = self._inliers(values)
        codes = codes_of(values / torch.where(scale > 0, scale, 1.0), self.levels)
        centroids = self.levels[codes.int()]
        return ActivationRows(
            centroids, scale, torch.where(inlier, scale * centroids, values), self.group
        )

    def _inliers(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which of tokens' values [T, K] are no outliers, and the scale of each."""
        size = values.shape[1]
        count = count_of(size, self.share)
        if self.thresholds is not None:
            low, high = self.thresholds
            inlier = (values >= low) & (values <= high)
        elif not count:
            inlier = torch.ones_like(values, dtype=torch.bool)
        else:
            ends = _ends(values, count)
            inlier = torch.ones_like(values, dtype=torch.bool).scatter_(1, ends, False)
        scales = self._scales(torch.where(inlier, values.abs(), 0.0))
        return inlier, _spread(scales, self.group, size)

    def _scales(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return the greatest of each group of sizes [..., K], [..., G]."""
        group = self.group or sizes.shape[-1]
        padded = torch.nn.functional.pad(sizes, (0, -sizes.shape[-1] % group))
        return padded.reshape(*sizes.shape[:-1], -1, group).amax(-1)


def _ends(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the `count` greatest and least of each row [T, K]: [T, 2 count].

    Of equal values the one of lower index counts as the greater.
    """
    order = torch.argsort(values, dim=1, descending=True, stable=True)
    return torch.cat((order[:, :count], order[:, values.shape[1] - count :]), 1)


def _spread(scales: torch.Tensor, group: int | None, size: int) -> torch.Tensor:
    """Return the scale of each of so many values, [..., K], from those of groups [..., G]."""
    return scales.repeat_interleave(group or size, -1)[..., :size]


def _check(values: torch.Tensor) -> None:
    if not torch.isfinite(values).all():
        raise InputError("activations have NaN or infinite values; all must be finite")
