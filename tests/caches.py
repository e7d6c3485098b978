"""Caches as tests make them: float32 unless they ask for another type."""

from __future__ import annotations

from typing import Any

import torch

from suffice.cache import GROWTHS
from suffice.cache.kv import KVCache
from suffice.models.decoder import Decoder
from suffice.quant import hadamard


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


def cache_for(decoder: Decoder, dtype: str = "float32", **options: Any) -> KVCache:
    config = decoder.config
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

    For keys in 4-bit codes they are rotated and rounded to int8; for others they are as they are.
    """
    if cache.native.key_type != "kmeans4":
        return q
    block = q.shape[-1] & -q.shape[-1]
    turned = hadamard.rotate(q, block)
    unit = turned.abs().amax(-1, keepdim=True) / 127
    return hadamard.rotate(torch.round(turned / unit) * unit, block)
