"""Activations of a token by codebook: k-means centroids for most values, outliers kept exact.

    x[k] ~ scale[g] c[code[k]],    scale[g] = max |x| over the inliers in group g = k // group

An activation site, the input that some matrices share, has one codebook of 2^a normalised
centroids, learned on a text. A token has one scale, as in the paper, or one for each `group` of its
values. Outliers are a share of a token's values, the greatest and the least: selected for each
token (`kllm`), or the values beyond two thresholds from the calibration (`KLLM-S`). They also have
the code of the nearest centroid, so the matmul over all codes needs no mask; the correction (x -
scale c) W[:, k] is added for these few.

Source   KLLM, sections II-A and III-A (2507.23035); codes for outliers: its version 4. Groups:
         this project's.
Bound    |x - q| <= scale * half the widest gap of the codebook, 0 for outliers.
Exact    with no more distinct normalised inliers than centroids, or with outliers only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from suffice.errors import InputError
from suffice.quant.codebook import codebook, codes_of
from suffice.quant.outliers import count_of
from suffice.quant.panels import ROWS


def check_input_group(what: str, group: int | None) -> None:
    """Refuse a group of inputs that cannot share a scale because it is not whole panels.

    Raises:
        InputError: It is not a multiple of 16.
    """
    if group is not None and (group < ROWS or group % ROWS):
        raise InputError(f"{what}={group}: must be a multiple of {ROWS}, or none")


@dataclass(frozen=True)
class Activations:
    """One token's values [K]: `codes` of `levels`, and outliers by index and value.

    `scales` [G] belong to groups of `group` values; one for all values if `group` is None.
    """

    codes: np.ndarray
    levels: np.ndarray
    scales: np.ndarray
    places: np.ndarray
    kept: np.ndarray
    group: int | None = None

    @property
    def scale(self) -> float:
        """The scale, if all values share one."""
        (only,) = self.scales.tolist()
        return float(only)

    @property
    def spread(self) -> np.ndarray:
        """The scale of each value, [K]."""
        return _spread(self.scales, self.group, len(self.codes))

    @property
    def dense(self) -> np.ndarray:
        """The values of the codes alone, [K]."""
        values: np.ndarray = self.spread * self.levels[self.codes]
        return values

    @property
    def residual(self) -> np.ndarray:
        """The error of the code of each outlier."""
        errors: np.ndarray = self.kept - self.dense[self.places]
        return errors

    def decode(self) -> np.ndarray:
        """Return all values, outliers included, [K]."""
        values = self.dense
        values[self.places] = self.kept
        return values


@dataclass(frozen=True)
class ActivationRows:
    """Tokens' values [T, K]: the `centroids` of their codes, the scale of each, and the result.

    `rounded` is scale times centroid, except for outliers. `group` values share a scale; None: all
    values of a token.
    """

    centroids: np.ndarray
    scale: np.ndarray
    rounded: np.ndarray
    group: int | None = None


@dataclass(frozen=True)
class Site:
    """The codebook and the outlier rule of one activation site.

    `share` of the values at each end are outliers, unless `thresholds` gives the least and the
    greatest inlier. `group` values share a scale; None: all values of a token.
    """

    levels: np.ndarray
    share: float = 0.005
    thresholds: tuple[float, float] | None = None
    group: int | None = None

    @classmethod
    def learn(
        cls,
        values: np.ndarray,
        bits: int,
        share: float = 0.005,
        importance: np.ndarray | None = None,
        *,
        offline: bool = False,
        group: int | None = None,
    ) -> Site:
        """Learn the codebook from tokens [T, K]: k-means of all inliers, each group normalised.

        The weights are `importance` [T, K], such as Fisher information, times scale^2. `offline`:
        thresholds are quantiles of all values and hold for every token.

        Raises:
            InputError: A value is not finite, or the share is not within 0..0.5.
        """
        if importance is None:
            importance = np.ones_like(values)
        thresholds = None
        if offline:
            low, high = np.quantile(values.astype(np.float64), [share, 1 - share])
            thresholds = float(low), float(high)
        site = cls(np.zeros(1, np.float32), share, thresholds, group)
        inlier, scale = site._inliers(values)
        normal = values / np.where(scale > 0, scale, 1)
        weight = importance * np.square(scale) * inlier
        if not (weight > 0).any():  # a site of zeros only
            weight = np.ones_like(weight)
        return replace(site, levels=codebook(normal, weight, 2**bits))

    def outliers(self, row: np.ndarray) -> np.ndarray:
        """Return the indices of a token's outliers, ascending."""
        if self.thresholds is not None:
            low, high = self.thresholds
            return np.flatnonzero((row < low) | (row > high))
        return np.sort(_ends(row[None], count_of(len(row), self.share))[0])

    def encode(self, row: np.ndarray) -> Activations:
        """Return the codes of a token's values [K].

        Raises:
            InputError: A value is not finite.
        """
        _check(row)
        places = self.outliers(row)
        inlier = np.ones(len(row), np.bool_)
        inlier[places] = False
        scales = self._scales(np.where(inlier, np.abs(row), 0))
        spread = _spread(scales, self.group, len(row))
        codes = codes_of(row / np.where(spread > 0, spread, 1), self.levels)
        return Activations(codes, self.levels, scales, places, row[places], self.group)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Return tokens' values [T, K] after rounding: `encode` and `decode` of each token.

        Raises:
            InputError: A value is not finite.
        """
        return self.rows(values).rounded

    def rows(self, values: np.ndarray) -> ActivationRows:
        """Return the codes' centroids and the scales of tokens' values [T, K].

        Raises:
            InputError: A value is not finite.
        """
        _check(values)
        inlier, scale = self._inliers(values)
        codes = codes_of(values / np.where(scale > 0, scale, 1), self.levels)
        centroids = self.levels[codes]
        return ActivationRows(
            centroids, scale, np.where(inlier, scale * centroids, values), self.group
        )

    def _inliers(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a mask of the inliers among tokens' values [T, K], and the scale of each value."""
        size = values.shape[1]
        count = count_of(size, self.share)
        if self.thresholds is not None:
            low, high = self.thresholds
            inlier = (values >= low) & (values <= high)
        else:
            inlier = np.ones(values.shape, np.bool_)
            np.put_along_axis(inlier, _ends(values, count), False, 1)
        scales = self._scales(np.where(inlier, np.abs(values), 0))
        return inlier, _spread(scales, self.group, size)

    def _scales(self, sizes: np.ndarray) -> np.ndarray:
        """Return the greatest of each group of sizes [..., K], [..., G]."""
        group = self.group or sizes.shape[-1]
        missing = [(0, 0)] * (sizes.ndim - 1) + [(0, -sizes.shape[-1] % group)]
        cut = np.pad(sizes, missing).reshape(*sizes.shape[:-1], -1, group)
        greatest: np.ndarray = cut.max(-1)
        return greatest


def _ends(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` greatest and least of each row [T, K]: [T, 2 count].

    Of equal values the one of lower index counts as the greater.
    """
    order = np.argsort(-values, axis=1, kind="stable")
    return np.concatenate((order[:, :count], order[:, values.shape[1] - count :]), 1)


def _spread(scales: np.ndarray, group: int | None, size: int) -> np.ndarray:
    """Return the scale of each of `size` values, [..., K], from those of groups [..., G]."""
    return scales.repeat(group or size, -1)[..., :size]


def _check(values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise InputError("activations have NaN or infinite values; all must be finite")
