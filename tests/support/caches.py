"""Caches as tests make them: float32 unless they ask for another type.

Keys in 4-bit codes are rounded as if their model had been looked at, unless a test says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from suffice.cache import GROWTHS
from suffice.cache.kv import KVCache
from suffice.models.decoder import DecoderWeights
from suffice.models.key_rounding import factors
from suffice.native import core
from suffice.quant import hadamard


@dataclass(frozen=True)
class Rounding:
    """Some way to round keys: means [L, G, D], and S [L, G, D, D] of queries with few directions,
    all rotated, of channels that are scaled alike in every head.
    """

    layers: int
    groups: int
    size: int

    @cached_property
    def means(self) -> torch.Tensor:
        return self._random(1)[..., 0]

    @cached_property
    def moments(self) -> torch.Tensor:
        directions = self._random(self.size // 8)
        return directions @ directions.mT

    @cached_property
    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What passes errors on, [L, G, D, D], and the weights [L, G, D]."""
        found = [factors(moments) for moments in self.moments.flatten(0, 1)]
        passed, weights = (torch.stack(part) for part in zip(*found, strict=True))
        return passed.view(self.moments.shape), weights.view(self.means.shape)

    @cached_property
    def native(self) -> core.KeyRoundings:
        scales = channel_scales(self.size).expand(self.means.shape).contiguous()
        return core.KeyRoundings(*(x.numpy() for x in (scales, self.means, *self.factors)))

    def _random(self, columns: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(self.size)
        return torch.randn(self.layers, self.groups, self.size, columns, generator=random)


def channel_scales(size: int) -> torch.Tensor:
    """Return the scales of channels [D], from 1/2 to 2."""
    return 2 ** torch.linspace(-1, 1, size)


def empty_cache(
    layers: int,
    groups: int,
    size: int,
    dtype: str = "float32",
    *,
    growth: str = "double",
    limit: int = 2048,
    **options: Any,
) -> KVCache:
    if dtype == "kmeans4":
        options.setdefault("rounding", Rounding(layers, groups, size).native)
    return KVCache(
        layers,
        groups,
        size,
        growth=GROWTHS.build(growth),
        limit=limit,
        key_dtype=dtype,
        value_dtype=options.pop("value_dtype", dtype),
        **options,
    )


def cache_for(decoder: DecoderWeights, dtype: str = "float32", **options: Any) -> KVCache:
    config = decoder.config
    options.setdefault("rounding", None)  # another model's would not suit
    return empty_cache(len(config.layers), config.kv_heads, config.head_size, dtype, **options)


def cache_of(
    keys: torch.Tensor, values: torch.Tensor, dtype: str = "float32", **options: Any
) -> KVCache:
    """Return a cache of one layer that holds keys and values [G, S, D]."""
    groups, rows, size = keys.shape
    cache = empty_cache(1, groups, size, dtype, **options)
    cache.reserve(rows)
    cache.append(0, keys, values)
    cache.advance(rows)
    return cache


def as_multiplied(q: torch.Tensor, cache: KVCache) -> torch.Tensor:
    """Return queries [..., D] as products with this cache's keys take them.

    For keys in 4-bit codes, of `Rounding`, they are scaled, rotated and rounded to int8; for others
    they are as they are.
    """
    if cache.native.key_type != "kmeans4":
        return q
    block, scales = q.shape[-1] & -q.shape[-1], channel_scales(q.shape[-1])
    turned = rotate(q / scales, block)
    unit = turned.abs().amax(-1, keepdim=True) / 127
    return rotate(torch.round(turned / unit) * unit, block) * scales


def rotate(values: torch.Tensor, block: int) -> torch.Tensor:
    """Return values [..., D] rotated in blocks."""
    return torch.from_numpy(hadamard.rotate(values.numpy(), block))
