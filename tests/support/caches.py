"""Caches as tests make them: float32 unless they ask for another type.

Keys in 4-bit codes are rounded as if their model had been looked at, unless a test says otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from isas import rounds_bf16
from suffice.attention.planes import GREATEST, UPPER, Planes
from suffice.cache import GROWTHS, LayerRows, alike, fits_keys
from suffice.cache.kv import KVCache
from suffice.decoder.key_rounding import KeyRounding, factors
from suffice.decoder.native_states import state_shapes
from suffice.decoder.weights import DecoderWeights
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
    def means(self) -> np.ndarray:
        return self._random(1)[..., 0]

    @cached_property
    def moments(self) -> np.ndarray:
        directions = self._random(self.size // 8)
        return directions @ directions.swapaxes(-1, -2)

    @cached_property
    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """What passes errors on, [L, G, D, D], and the weights [L, G, D]."""
        found = [factors(moments) for moments in self.moments.reshape(-1, self.size, self.size)]
        passed, weights = (np.stack(part) for part in zip(*found, strict=True))
        return passed.reshape(self.moments.shape), weights.reshape(self.means.shape)

    @cached_property
    def native(self) -> core.KeyRoundings:
        scales = np.broadcast_to(channel_scales(self.size), self.means.shape)
        parts = scales, self.means, *self.factors
        return KeyRounding(*(np.ascontiguousarray(part) for part in parts)).native

    def _random(self, columns: int) -> np.ndarray:
        random = np.random.default_rng(self.size)
        shape = self.layers, self.groups, self.size, columns
        return random.standard_normal(shape, np.float32)


@functools.cache
def native_rounding(layers: int, groups: int, size: int) -> core.KeyRoundings:
    """Return `Rounding` for the extension, which takes longer to make than a test's cache."""
    return Rounding(layers, groups, size).native


def channel_scales(size: int) -> np.ndarray:
    """Return the scales of channels [D], from 1/2 to 2."""
    return 2 ** np.linspace(-1, 1, size, dtype=np.float32)


def empty_cache(
    layers: int,
    groups: int,
    size: int,
    dtype: str = "float32",
    **options: Any,
) -> KVCache:
    if fits_keys(dtype) or options.get("bases"):
        options.setdefault("rounding", native_rounding(layers, groups, size))
    return cache_with(alike(layers, groups, size), dtype, **options)


def cache_with(
    rows: Sequence[LayerRows],
    dtype: str,
    *,
    growth: str = "double",
    limit: int = 2048,
    **options: Any,
) -> KVCache:
    return KVCache(
        rows,
        growth=GROWTHS.build(growth),
        limit=limit,
        key_dtype=dtype,
        value_dtype=options.pop("value_dtype", dtype),
        **options,
    )


def cache_for(decoder: DecoderWeights, dtype: str = "float32", **options: Any) -> KVCache:
    config = decoder.config
    options.setdefault("rounding", None)  # another model's would not suit
    options.setdefault("states", state_shapes(config.states))
    options["joint"] = config.joint
    return cache_with(config.rows, dtype, **options)


def cache_of(
    keys: np.ndarray, values: np.ndarray, dtype: str = "float32", **options: Any
) -> KVCache:
    """Return a cache of one layer that holds keys and values [G, S, D]."""
    groups, rows, size = keys.shape
    cache = empty_cache(1, groups, size, dtype, **options)
    cache.reserve(rows)
    cache.append(0, keys, values)
    cache.advance(rows)
    return cache


def held(cache: KVCache, layer: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys and values [G, S, D] that a layer holds."""
    return cache.keys(layer), cache.values(layer)


def held_planes(cache: KVCache, rows: int | None = None) -> tuple[Planes, Planes]:
    """Return the first layer's keys and values with their bases, rounded without a fit.

    Scales follow from the rows: every element of a base is one of a few multiples of them.
    """
    shape = cache.heads(0), rows or cache.length, cache.size(0)
    base, whole = ([np.empty(shape, np.float32) for _ in range(2)] for _ in range(2))
    cache.native.load(0, 0, *base, base=True)
    cache.native.load(0, 0, *whole)
    types = cache.native.key_type, cache.native.value_type
    keys, values = (_planes(*pair, dtype) for *pair, dtype in zip(base, whole, types, strict=True))
    return keys, values


_known_planes: dict[Any, Planes] = {}  # what takes long, and is asked for by many tests


def _planes(base: np.ndarray, whole: np.ndarray, dtype: str) -> Planes:
    key = digest(base, whole), dtype
    if key not in _known_planes:
        turned = (rotated(x.astype(np.float64)) for x in (base, whole))
        _known_planes[key] = _planes_of(*turned, in_planes=dtype == "planes")
    return _known_planes[key]


def digest(*arrays: np.ndarray) -> bytes:
    """Return what tells the contents and shapes of arrays from others."""
    found = hashlib.blake2b(digest_size=16)
    for each in arrays:
        found.update(f"{each.shape} {each.dtype}".encode())
        found.update(np.ascontiguousarray(each).data)
    return found.digest()


_IS_LEVEL = np.isin(np.arange(GREATEST + 2), UPPER)


def _planes_of(base: np.ndarray, whole: np.ndarray, *, in_planes: bool) -> Planes:
    least = np.abs(base).min(-1, keepdims=True)
    scale = np.zeros_like(least)
    for level in UPPER:  # the least level that a row has
        levels = np.divide(base, least / level, out=np.zeros_like(base), where=least > 0)
        sizes = np.abs(levels)
        near = np.minimum(np.rint(sizes), GREATEST + 1)
        fits = ((np.abs(sizes - near) < 1e-2) & _IS_LEVEL[near.astype(int)]).all(-1, keepdims=True)
        scale = np.where((scale == 0) & fits, least / level, scale)
    unit = np.where(scale > 0, scale, 1)
    levels, rest = np.rint(base / unit).astype(np.int8), (whole - base) / unit
    rest = np.rint(rest).astype(np.int8) if in_planes else rest
    return Planes(levels, rest, scale.astype(np.float32))


def in_pairs(dtype: str) -> bool:
    """Return whether keys or values of a type are multiplied in pairs of bfloat16, and with them
    queries and weights rounded to bfloat16."""
    return dtype == "bfloat16" and rounds_bf16()


def as_multiplied(
    q: np.ndarray, cache: KVCache, scale: float, *, fitted: bool = True
) -> np.ndarray:
    """Return queries [..., D] as products with this cache's keys take them.

    For keys in 4-bit codes, of `Rounding` if `fitted`, they are scaled, rotated and rounded to
    int8; for keys that are multiplied in pairs, rounded to bfloat16 in units of log2(e) `scale`;
    for others they are as they are.
    """
    if in_pairs(cache.native.key_type):
        units = q.astype(np.float32) * np.float32(scale) * np.float32(math.log2(math.e))
        rounded = units.astype(ml_dtypes.bfloat16).astype(np.float64)
        return np.asarray(rounded / (np.float64(np.float32(scale)) * math.log2(math.e)))
    if cache.native.key_type != "kmeans4":
        return q
    scales = channel_scales(q.shape[-1]) if fitted else np.float32(1)
    turned = rotated(q / scales)
    unit = np.abs(turned).max(-1, keepdims=True) / 127
    return rotated(np.rint(turned / unit) * unit) * scales


def rotated(x: np.ndarray) -> np.ndarray:
    """Return rows [..., D] rotated as keys in 4-bit codes are."""
    return hadamard.rotate(x, x.shape[-1] & -x.shape[-1])
