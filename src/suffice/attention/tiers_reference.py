"""The reference of `tiers`: sorts the rows of each token into tiers, written for reading.

Scores are in base 2, and queries for estimates are rounded to int8, as in the native code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from suffice.attention.block_sample_reference import draw, seed_of
from suffice.attention.planes import GREATEST, LEAST, Planes, rotated, split
from suffice.attention.sketch import heaviest_first
from suffice.attention.traversal import Attended
from suffice.cache import BLOCK

SLACK = 1.001  # room for the rounding of sums, and of exact attention's queries to int16
STEP = 0.5 / (127 << 8)  # of these, of the largest element
TILE = 4 * BLOCK  # rows
LEAST_SHARE = 1e-4  # of the distance that is asked for: below, all blocks are read


@dataclass(frozen=True)
class Limits:
    """Parameters of `tiers`, named as there."""

    eps: float
    skip: float
    bounded: bool = False
    sample: int = 0
    delta: float = 0.01


@dataclass(frozen=True)
class Tiered(Attended):
    """`keys` and `values` are rows read exactly; `light` [T, G, S] are values by their bases. The
    base of every visible key is read. `sampled` [T, G, S] are keys that a bound alone reads, in
    whole blocks, exactly. `distance` [T, G]: the bound, if asked for; `shift`: that on
    the output, over the length of the longest value.
    """

    light: np.ndarray
    sampled: np.ndarray
    distance: np.ndarray
    shift: np.ndarray


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    limits: Limits,
    visible: np.ndarray | None = None,
    stored: tuple[Planes, Planes] | None = None,
) -> Tiered:
    """Attend with q [H, T, D] to k, v [G, S, D]; `visible` bool [T, S].

    `stored` are keys and values with the bases that a cache has of them; None: those of `split`.
    """
    heads, tokens, _ = q.shape
    groups, length, _ = k.shape
    rows = heads // groups
    planes = stored or (split(k, keys=True), split(v, keys=False))
    output = np.empty_like(q)
    keys, values, light, sampled = np.zeros((4, tokens, groups, length), bool)
    distance, shift = np.zeros((2, tokens, groups))
    for g in range(groups):
        own = slice(g * rows, (g + 1) * rows)
        k_own, v_own = (Planes(x.levels[g], x.rest[g], x.scale[g]) for x in planes)
        held = _Held(k_own, v_own, limits)
        for t in range(tokens):
            sees = np.ones(length, bool) if visible is None else visible[t]
            queries = rotated(q[own, t].astype(np.float64) * (scale * math.log2(math.e)))
            tiers = held.sorted(queries, sees)
            if limits.sample:
                tiers = held.sampled(queries, sees, tiers, seed_of(g, int(np.nonzero(sees)[0][-1])))
            output[own, t] = rotated(held.output(queries, tiers))
            keys[t, g], values[t, g], light[t, g] = tiers.keys, tiers.values, tiers.light
            distance[t, g], shift[t, g] = tiers.distance, tiers.shift
            sampled[t, g] = tiers.sampled
    return Tiered(output, keys, values, light, sampled, distance, shift)


@dataclass(frozen=True)
class _Tiers:
    """A token's estimated scores [R, S], and bool [S]: keys and values read exactly, values read by
    their bases, and keys that a bound alone reads; and the bounds on the distance and on the
    output's shift."""

    estimates: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    light: np.ndarray
    sampled: np.ndarray | bool = False
    distance: float = 0.0
    shift: float = 0.0


@dataclass(frozen=True)
class _Held:
    """A group's keys and values [S, D], with their bases."""

    k: Planes
    v: Planes
    limits: Limits

    def sorted(self, q: np.ndarray, sees: np.ndarray) -> _Tiers:
        """Sort the rows that a token sees into tiers, for rotated queries [R, D]."""
        skip = self.limits.skip
        estimates = np.where(sees, _rounded(q) @ self.k.base.T, -np.inf)
        peak = estimates.max(-1, keepdims=True)
        shares = np.exp2(estimates - peak)
        total = shares.sum(-1, keepdims=True)
        floors = peak + np.minimum(np.log2(skip * total), 0) if skip else np.full_like(peak, -1e30)
        kept = (estimates >= floors).any(0)
        if self.limits.bounded:
            return self._bounded(q, sees, estimates, kept)
        heavy = self._heavy_rows(shares)
        read = np.repeat(_of_blocks(kept).any(-1), BLOCK)[: len(sees)]
        return _Tiers(estimates, sees & heavy & read, kept & heavy, kept & ~heavy)

    def _heavy_rows(self, shares: np.ndarray) -> np.ndarray:
        """Return the rows of heavy blocks, bool [S]; `shares` [R, S] need not sum to 1."""
        masses = _of_blocks(shares / shares.sum(-1, keepdims=True)).sum(-1)
        heavy, rest = np.zeros(masses.shape[-1], bool), masses.sum(-1)
        allowed = self.limits.eps * rest
        for block in heaviest_first(masses.sum(0).astype(np.float32)):
            if self.limits.eps and (rest <= allowed).all():
                break
            heavy[block] = True
            rest = rest - masses[:, block]
        return np.repeat(heavy, BLOCK)[: shares.shape[-1]]

    def _bounded(
        self, q: np.ndarray, sees: np.ndarray, estimates: np.ndarray, kept: np.ndarray
    ) -> _Tiers:
        """Sort the rows so that the distance of no head's softmax is above eps."""
        exact = np.where(sees, q @ self.k.whole.T, -np.inf)
        error = self._errors(q)
        most = self.limits.eps
        while True:
            heavy = self._fewest(estimates, error, kept, most)
            counts = np.where(heavy, sees, kept)
            scores = np.where(heavy, exact, estimates)
            distances = _distances(scores, error, counts, heavy)
            if distances.max() <= self.limits.eps:
                read, light = sees & heavy, kept & ~heavy
                shift = float((2 * distances + self._lost(scores, counts, light)).max())
                none = np.zeros_like(light)
                return _Tiers(estimates, read, read, light, none, float(distances.max()), shift)
            most = most / 2 if most / 2 > LEAST_SHARE * self.limits.eps else 0

    def _fewest(
        self, estimates: np.ndarray, error: np.ndarray, kept: np.ndarray, most: float
    ) -> np.ndarray:
        """Return the rows of the heaviest blocks that must be exact, as estimates say, bool [S]."""
        shares = np.exp2(estimates - estimates.max(-1, keepdims=True))
        masses = _of_blocks(shares).sum(-1)
        heavy = np.zeros(masses.shape[-1], bool)
        for block in heaviest_first(_of_blocks(shares / shares.sum(-1, keepdims=True)).sum((0, 2))):
            rows = np.repeat(heavy, BLOCK)[: len(kept)]
            if most and _distances(estimates, error, kept | rows, rows).max() <= most:
                break
            heavy[block] = True
        return np.repeat(heavy, BLOCK)[: len(kept)]

    def sampled(self, q: np.ndarray, sees: np.ndarray, tiers: _Tiers, seed: int) -> _Tiers:
        """Bound distances at the confidence 1 - delta, from the exact scores of some blocks."""
        exact = np.where(sees, q @ self.k.whole.T, -np.inf)
        counts, error = tiers.values | tiers.light, self._errors(q)
        scores = np.where(tiers.values, exact, tiers.estimates)
        peak = scores.max(-1, keepdims=True)
        used, true = np.exp2(scores - peak) * counts, np.exp2(exact - peak)
        unread = np.repeat(~_of_blocks(counts).any(-1), BLOCK)[: len(sees)]
        error = np.where(unread, self._largest_errors(q, sees & unread), error)
        possible = (np.exp2(scores - peak + error) - used) * ~tiers.values
        most = _of_blocks(possible).sum(-1)
        units = np.maximum(most.sum(-1, keepdims=True), 1e-300)
        falls = (used - np.exp2(scores - peak - error) * counts)[:, ~tiers.values].sum(-1)
        sample = draw((most / units).max(0), self.limits.sample, seed)
        bounds = _distances(scores, error, counts, tiers.values)
        for head, unit in enumerate(units[:, 0]):
            parts = np.maximum(true[head] - used[head], 0), np.maximum(used[head] - true[head], 0)
            addends = (_of_blocks(part).sum(-1) / unit for part in parts)
            more, less = (unit * sample.bound(each, self.limits.delta) for each in addends)
            fall = less if sample.certain else falls[head]
            total = used[head].sum()
            distance = max(more / (total + max(more - fall, 0)), less / total)
            bounds[head] = min(bounds[head], distance)
        read = _of_blocks(tiers.values).any(-1)
        alone = np.repeat(sample.chosen & ~read, BLOCK)[: len(sees)] & sees
        shift = float((2 * bounds + self._lost(scores, counts, tiers.light)).max())
        return replace(tiers, sampled=alone, distance=float(bounds.max()), shift=shift)

    def _lost(self, scores: np.ndarray, counts: np.ndarray, light: np.ndarray) -> np.ndarray:
        """Return how far bases of light values move outputs at most, over the longest value [R]."""
        weights = np.exp2(scores - scores.max(-1, keepdims=True)) * counts
        lost: np.ndarray = (weights * light) @ self.v.errors[:, 0] / weights.sum(-1)
        return lost

    def _errors(self, q: np.ndarray) -> np.ndarray:
        """Return by how much an estimated score may be off, at most [R, S]."""
        scale = self.k.scale[:, 0]
        return self._error(q, self.k.lengths[:, 0] * scale, scale)

    def _largest_errors(self, q: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the same with the largest scale of each tile, and the largest product with a
        length, among the rows bool [S]."""
        scale = self.k.scale[:, 0]
        length, scale = (
            np.repeat(_of_blocks(each * rows, TILE).max(-1), TILE)[: len(rows)]
            for each in (self.k.lengths[:, 0] * scale, scale)
        )
        return self._error(q, length, scale)

    def _error(self, q: np.ndarray, length: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return errors of scores [R, S], for the lengths of what bases lack, and scales [S]."""
        lost = np.abs(q - _rounded(q)).sum(-1, keepdims=True) * GREATEST
        size = q.shape[-1]
        step = STEP if self.k.rest.dtype == np.int8 else 0  # other exact keys multiply q itself
        steps = size * step * (GREATEST - LEAST) * np.abs(q).max(-1, keepdims=True)
        of_query = np.sqrt(np.square(q).sum(-1, keepdims=True))
        errors: np.ndarray = SLACK * (of_query * length + (lost + steps) * scale)
        return errors

    def output(self, q: np.ndarray, tiers: _Tiers) -> np.ndarray:
        """Return the rotated output [R, D]."""
        scores = np.where(tiers.values, q @ self.k.whole.T, tiers.estimates)
        scores = np.where(tiers.values | tiers.light, scores, -np.inf)
        weights = np.exp2(scores - scores.max(-1, keepdims=True))
        sums = (weights * tiers.values) @ self.v.whole + (weights * tiers.light) @ self.v.base
        output: np.ndarray = sums / weights.sum(-1, keepdims=True)
        return output


def _rounded(q: np.ndarray) -> np.ndarray:
    """Return queries [R, D] rounded to int8."""
    unit = np.abs(q).max(-1, keepdims=True) / 127
    rounded: np.ndarray = np.rint(np.divide(q, unit, out=np.zeros_like(q), where=unit > 0)) * unit
    return rounded


def _distances(
    scores: np.ndarray, error: np.ndarray, counts: np.ndarray, exact: np.ndarray
) -> np.ndarray:
    """Return the largest total variation distance that each head's softmax may have [R].

    Rows that count do so by `scores` [R, S], which are exact or off by `error` at most; the weights
    of rows that do not count are missing. See docs/techniques/tiers_bound.md.
    """
    base = scores - scores.max(-1, keepdims=True)
    weights = np.exp2(base) * counts
    light = ~exact
    more = ((np.exp2(base + error) - weights) * light).sum(-1)
    less = ((weights - np.exp2(base - error) * counts) * light).sum(-1)
    found: np.ndarray = np.minimum(more / (weights.sum(-1) + more - less), 1)
    return found


def _of_blocks(rows: np.ndarray, size: int = BLOCK) -> np.ndarray:
    """Return [..., S] as [..., blocks, size], filled up with zeros."""
    missing = -rows.shape[-1] % size
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    return padded.reshape(*rows.shape[:-1], -1, size)
