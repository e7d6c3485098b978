"""The reference of `tiers`: sorts the rows of each token into tiers, written for reading.

Scores are in base 2, and queries for estimates are rounded to int8, as in the native code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from suffice.attention.planes import Planes, rotated, split
from suffice.attention.sketch import heaviest_first
from suffice.attention.traversal import Attended
from suffice.cache import BLOCK


@dataclass(frozen=True)
class Tiered(Attended):
    """`keys` and `values` are rows read by both planes; `light` [T, G, S] are values by the base
    plane. The base plane of every visible key is read."""

    light: np.ndarray


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    eps: float,
    skip: float,
    visible: np.ndarray | None = None,
) -> Tiered:
    """Attend with q [H, T, D] to k, v [G, S, D] as read from planes; `visible` bool [T, S]."""
    heads, tokens, _ = q.shape
    groups, length, _ = k.shape
    rows = heads // groups
    output = np.empty_like(q)
    keys, values, light = np.zeros((3, tokens, groups, length), bool)
    for g in range(groups):
        stored = split(k[g], keys=True), split(v[g], keys=False)
        own = slice(g * rows, (g + 1) * rows)
        for t in range(tokens):
            sees = np.ones(length, bool) if visible is None else visible[t]
            queries = rotated(q[own, t].astype(np.float64) * (scale * math.log2(math.e)))
            tiers = _sorted(queries, stored[0], sees, eps, skip)
            output[own, t] = rotated(_output(queries, stored, tiers))
            keys[t, g], values[t, g], light[t, g] = tiers.keys, tiers.values, tiers.light
    return Tiered(output, keys, values, light)


@dataclass(frozen=True)
class _Tiers:
    """A token's estimated scores [R, S], and bool [S]: keys and values read by both planes, values
    read by the base plane."""

    estimates: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    light: np.ndarray


def _sorted(q: np.ndarray, k: Planes, sees: np.ndarray, eps: float, skip: float) -> _Tiers:
    """Sort the rows that a token sees into tiers, for rotated queries [R, D] of a group."""
    unit = np.abs(q).max(-1, keepdims=True) / 127
    rounded = np.rint(np.divide(q, unit, out=np.zeros_like(q), where=unit > 0)) * unit
    estimates = np.where(sees, rounded @ k.base.T, -np.inf)
    peak = estimates.max(-1, keepdims=True)
    shares = np.exp2(estimates - peak)
    total = shares.sum(-1, keepdims=True)
    floors = peak + np.minimum(np.log2(skip * total), 0) if skip else np.full_like(peak, -1e30)
    kept = (estimates >= floors).any(0)
    heavy = np.repeat(_heavy_blocks(shares / total, eps), BLOCK)[: len(sees)]
    read = np.repeat(_of_blocks(kept).any(-1), BLOCK)[: len(sees)]
    return _Tiers(estimates, sees & heavy & read, kept & heavy, kept & ~heavy)


def _heavy_blocks(shares: np.ndarray, eps: float) -> np.ndarray:
    """Return which blocks are heavy, bool [blocks], by shares [R, S] of the sum of weights."""
    masses = _of_blocks(shares).sum(-1)
    heavy, rest = np.zeros(masses.shape[-1], bool), masses.sum(-1)
    allowed = eps * rest
    for block in heaviest_first(masses.sum(0).astype(np.float32)):
        if eps and (rest <= allowed).all():
            break
        heavy[block] = True
        rest = rest - masses[:, block]
    return heavy


def _of_blocks(rows: np.ndarray) -> np.ndarray:
    """Return [..., S] as [..., blocks, 16], filled up with zeros."""
    missing = -rows.shape[-1] % BLOCK
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    return padded.reshape(*rows.shape[:-1], -1, BLOCK)


def _output(q: np.ndarray, stored: tuple[Planes, Planes], tiers: _Tiers) -> np.ndarray:
    """Return the rotated output [R, D]."""
    k, v = stored
    scores = np.where(tiers.values, q @ k.whole.T, tiers.estimates)
    scores = np.where(tiers.values | tiers.light, scores, -np.inf)
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    sums = (weights * tiers.values) @ v.whole + (weights * tiers.light) @ v.base
    output: np.ndarray = sums / weights.sum(-1, keepdims=True)
    return output
