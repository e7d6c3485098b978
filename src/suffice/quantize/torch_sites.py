"""Rounding of activations in PyTorch, on any device: the tensors of `quant.activations.Site.rows`.

Each value is that of the NumPy code, bit for bit. What is no `Site` rounds on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from suffice.errors import InputError
from suffice.quant.activations import ActivationRows, Site
from suffice.quant.codebook import borders
from suffice.quant.hadamard import rotate
from suffice.quant.outliers import count_of
from suffice.quant.packed_codes import PackedCodes


class Coder(Protocol):
    """What rounds the activations of a site: a `Site`, or that of another method."""

    def rows(self, values: np.ndarray) -> ActivationRows:
        """Return tokens' values [T, K] after rounding."""
        ...


@dataclass(frozen=True)
class TensorRows:
    """`ActivationRows` of tensors: tokens' values [T, K] after rounding."""

    centroids: torch.Tensor
    scale: torch.Tensor
    rounded: torch.Tensor
    group: int | None = None

    @classmethod
    def exact(cls, values: torch.Tensor) -> TensorRows:
        """Return values that are not rounded."""
        return cls(values, torch.ones_like(values), values)


def coded_inputs(weight: PackedCodes, x: torch.Tensor) -> torch.Tensor:
    """Return inputs [T, K] rounded to the codebook of the weight's site: its `quantize_inputs`."""
    if weight.site is None:
        return x
    order = None if weight.order is None else torch.from_numpy(weight.order).to(x.device)
    x = x if order is None else x[:, order]
    x = turned(x, weight.rotation) if weight.rotation else x
    x = rounded_rows(weight.site, x).rounded
    x = turned(x, weight.rotation) if weight.rotation else x
    return x if order is None else torch.empty_like(x).index_copy_(1, order, x)


def rounded_rows(coder: Coder, values: torch.Tensor) -> TensorRows:
    """Return tokens' values [T, K] after rounding, where they are.

    Raises:
        InputError: A value is not finite.
    """
    if isinstance(coder, Site):
        return _of_site(coder, values)
    found = coder.rows(values.cpu().numpy())
    centroids, scale, rounded = (
        torch.from_numpy(part).to(values.device)
        for part in (found.centroids, found.scale, found.rounded)
    )
    return TensorRows(centroids, scale, rounded, found.group)


def _of_site(site: Site, values: torch.Tensor) -> TensorRows:
    if not bool(torch.isfinite(values).all()):
        raise InputError("activations have NaN or infinite values; all must be finite")
    inlier = _inliers(site, values)
    sizes = values.abs() if inlier is None else values.abs().masked_fill(~inlier, 0)
    scale = _spread(sizes, site.group)
    edges = torch.from_numpy(borders(site.levels)).to(values.device)
    codes = torch.bucketize(values / scale.masked_fill(scale == 0, 1), edges, out_int32=True)
    centroids = torch.from_numpy(site.levels).to(values.device)[codes]
    rounded = scale * centroids
    if inlier is not None:
        rounded = torch.where(inlier, rounded, values)
    return TensorRows(centroids, scale, rounded, site.group)


def _inliers(site: Site, values: torch.Tensor) -> torch.Tensor | None:
    """Return which values [T, K] are no outliers; None: all of them."""
    if site.thresholds is not None:
        low, high = (float(np.float32(each)) for each in site.thresholds)
        return (values >= low) & (values <= high)
    size = values.shape[1]
    count = count_of(size, site.share)
    if not count:
        return None
    # Of equal values the one of lower index counts as the greater.
    order = values.sort(dim=1, descending=True, stable=True).indices
    ends = torch.cat((order[:, :count], order[:, size - count :]), 1)
    return torch.ones_like(values, dtype=torch.bool).scatter_(1, ends, False)


def _spread(sizes: torch.Tensor, group: int | None) -> torch.Tensor:
    """Return for each of the sizes [T, K] the greatest of its group."""
    count = sizes.shape[1]
    group = group or count
    cut = functional.pad(sizes, (0, -count % group)).view(len(sizes), -1, group)
    return cut.amax(-1).repeat_interleave(group, 1)[:, :count]


def turned(x: torch.Tensor, rotation: int) -> torch.Tensor:
    """Return x [T, K] rotated in blocks, where it is.

    On the host step by step as the engine does, elsewhere by one product with the whole matrix.
    """
    if x.device.type == "cpu":
        return torch.from_numpy(rotate(x.numpy(), rotation))
    return (x.reshape(-1, rotation) @ _rotation(rotation, x.device)).view(x.shape)


@lru_cache(maxsize=8)
def _rotation(block: int, device: torch.device) -> torch.Tensor:
    """Return the matrix [B, B], symmetric, that rotates a block of values."""
    return torch.from_numpy(rotate(np.eye(block), block).astype(np.float32)).to(device)
