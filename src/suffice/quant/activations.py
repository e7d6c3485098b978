"""Activations of a token by codebook: K-means centroids for the many, outliers as they are.

    x[k] ~ scale c[code[k]],    scale = max |x| over the inliers of the token

A site, the input that some layers share, has one codebook of 2^a normalised centroids, learned
beforehand. Outliers are the share of a token's values that are greatest and least: found online
(`kllm`), or what lies beyond two thresholds found beforehand (`KLLM-S`). They keep the code that is
nearest, so that the product over all codes needs no mask, and what is missing,
(x - scale c) W[:, k], is added for these few.

Source   KLLM, sections II-A and III-A (2507.23035); codes for outliers, too: its version 4.
Bound    |x - q| <= scale * half the widest gap of the codebook, 0 for outliers.
Exact    as many distinct normalised inliers as centroids, or every value an outlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suffice.errors import InputError
from suffice.quant.codebook import codebook, codes_of
from suffice.quant.outliers import count_of, outliers

__all__ = ["Activations", "Site"]


@dataclass(frozen=True)
class Activations:
    """One token's values [K]: `codes` of `levels`, a `scale`, and outliers by index and value."""

    codes: torch.Tensor
    levels: torch.Tensor
    scale: float
    places: torch.Tensor
    kept: torch.Tensor

    @property
    def dense(self) -> torch.Tensor:
        """What the codes stand for, [K]."""
        return self.scale * self.levels[self.codes.int()]

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
class Site:
    """How the activations of one site are coded.

    `share` of the values at each end are outliers, unless `thresholds`, the least and the greatest
    inlier, say what is one.
    """

    levels: torch.Tensor
    share: float = 0.005
    thresholds: tuple[float, float] | None = None

    @classmethod
    def learn(
        cls,
        values: torch.Tensor,
        bits: int,
        share: float = 0.005,
        importance: torch.Tensor | None = None,
        *,
        offline: bool = False,
    ) -> Site:
        """Learn the codebook from tokens [T, K]: K-means of all inliers, each token normalised.

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
        site = cls(torch.zeros(1), share, thresholds)
        inlier, scale = site._inliers(values)
        normal = values / torch.where(scale > 0, scale, 1.0)
        weight = importance * scale.square() * inlier
        return cls(codebook(normal, weight, 2**bits), share, thresholds)

    def outliers(self, row: torch.Tensor) -> torch.Tensor:
        """Return the indices of a token's outliers, ascending."""
        if self.thresholds is not None:
            low, high = self.thresholds
            return torch.nonzero((row < low) | (row > high))[:, 0]
        found = outliers(row, count_of(len(row), self.share))
        return torch.tensor(sorted(found.greatest + found.least), dtype=torch.long)

    def encode(self, row: torch.Tensor) -> Activations:
        """Return the code of a token's values [K].

        Raises:
            InputError: A value is not finite.
        """
        places = self.outliers(row)
        inlier = torch.ones(len(row), dtype=torch.bool)
        inlier[places] = False
        scale = float(row[inlier].abs().max()) if inlier.any() else 0.0
        codes = codes_of(row / (scale or 1.0), self.levels)
        return Activations(codes, self.levels, scale, places, row[places])

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Return what tokens' values [T, K] stand for once coded: `encode` and `decode` of each.

        Raises:
            InputError: A value is not finite.
        """
        if not torch.isfinite(values).all():
            raise InputError("activations have NaN or infinite values; all must be finite")
        inlier, scale = self._inliers(values)
        codes = codes_of(values / torch.where(scale > 0, scale, 1.0), self.levels)
        return torch.where(inlier, scale * self.levels[codes.int()], values)

    def _inliers(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which of tokens' values [T, K] are no outliers, and the scale [T, 1] of these."""
        size = values.shape[1]
        count = count_of(size, self.share)
        if self.thresholds is not None:
            low, high = self.thresholds
            inlier = (values >= low) & (values <= high)
        elif not count:
            inlier = torch.ones_like(values, dtype=torch.bool)
        else:
            # Of equal values the one of lower index counts as the greater.
            order = torch.argsort(values, dim=1, descending=True, stable=True)
            ends = torch.cat((order[:, :count], order[:, size - count :]), 1)
            inlier = torch.ones_like(values, dtype=torch.bool).scatter_(1, ends, False)
        return inlier, torch.where(inlier, values.abs(), 0.0).amax(1, keepdim=True)
