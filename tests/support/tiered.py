"""Keys, values and queries for `tiers`: some keys matter, and some queries fool their bases."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from caches import cache_of, digest, held, held_planes
from suffice.attention.tiers import Tiers
from suffice.attention.tiers_reference import Tiered
from suffice.cache.kv import KVCache

GROUPS, REP, SIZE, SCALE = 2, 3, 64, 0.125


def like_a_model_s(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [G, S, D]: keys have a few common directions, so that some rows matter."""
    keys, values = _like_a_model_s(rows, seed)
    return keys.copy(), values.copy()


@functools.lru_cache(maxsize=32)
def _like_a_model_s(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    shared = random.standard_normal((GROUPS, 6, SIZE))
    parts = random.standard_normal((GROUPS, rows, 6)) ** 3
    keys = parts @ shared / 4 + random.standard_normal((GROUPS, rows, SIZE)) / 2
    values = random.standard_normal((GROUPS, rows, SIZE))
    return keys.astype(np.float32), values.astype(np.float32)


def filled(rows: int, seed: int = 0, dtype: str = "planes") -> KVCache:
    keys, values = like_a_model_s(rows, seed)
    return cache_of(keys, values, dtype, rounding=None, bases=True, limit=8192)


def queries(count: int, seed: int = 1, spread: float = 1.5) -> np.ndarray:
    shape = GROUPS * REP, count, SIZE
    return (spread * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


_references: dict[Any, Tiered] = {}  # which take long, and are the same for all ISAs


def reference(
    technique: Tiers, q: np.ndarray, cache: KVCache, visible: np.ndarray | None = None
) -> Tiered:
    k, v = held(cache)
    stored = held_planes(cache)
    seen = () if visible is None else (visible,)
    key = technique, digest(q, k, v, *(each.base for each in stored), *seen)
    if key not in _references:
        _references[key] = technique.reference(
            *(each.astype(np.float64) for each in (q, k, v)),
            scale=SCALE,
            visible=visible,
            stored=stored,
        )
    return _references[key]


def queries_that_estimates_miss(cache: KVCache, seed: int) -> np.ndarray:
    """Queries along what second planes add to some keys, so that their scores are far off."""
    whole, base = cache.keys(0), np.empty_like(cache.keys(0))
    cache.native.load(0, 0, base, None, base=True)
    count = 24
    rows = np.random.default_rng(seed).integers(0, cache.length - count, (GROUPS, REP, count))
    lost = np.stack([(whole - base)[g][rows[g]] for g in range(GROUPS)])
    lost /= np.linalg.norm(lost, axis=-1, keepdims=True)
    sizes = np.linspace(1, 60, count, dtype=np.float32)[:, None]
    return np.ascontiguousarray((sizes * lost).reshape(GROUPS * REP, count, SIZE))
