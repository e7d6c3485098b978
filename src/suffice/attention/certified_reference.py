"""The reference of `certified`: selects and reads blocks token by token, written for reading.

Scores are in base 2, as in the native code, and float32 where a selection depends on them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from suffice.attention.sketch import (
    CHUNK,
    SLACK,
    complete_chunks,
    estimate,
    heaviest_first,
    sketch,
)
from suffice.attention.traversal import Attended
from suffice.cache import BLOCK

VISIT = 16  # blocks that share one allowance for skipped values
SUM_ERROR = 1e-5  # relative error of float32 sums, as in the native code


class Limits(NamedTuple):
    """The limits of the unread mass: the fields of `Certified` of the same names."""

    eps: float
    values: float
    bounded: bool


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    limits: Limits,
    visible: np.ndarray | None = None,
) -> Attended:
    """Attend with q [H, T, D] to k, v [G, S, D]; `visible` bool [T, S]."""
    heads, tokens, _ = q.shape
    groups, length, _ = k.shape
    rows = heads // groups
    output = np.empty_like(q)
    keys = np.zeros((tokens, groups, length), bool)
    values = np.zeros_like(keys)
    for t in range(tokens):
        sees = np.ones(length, bool) if visible is None else visible[t]
        for g in range(groups):
            own = slice(g * rows, (g + 1) * rows)
            queries = q[own, t] * (scale * math.log2(math.e))
            walk = Walk(limits, queries, k[g], v[g], sees)
            output[own, t] = walk.go()
            keys[t, g], values[t, g] = walk.keys, walk.values
    return Attended(output, keys, values)


class Walk:
    """One token's traversal for one group of R heads."""

    def __init__(
        self,
        limits: Limits,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        sees: np.ndarray,
    ) -> None:
        self.limits, self.q, self.k, self.v, self.sees = limits, q, k, v, sees
        self.keys = np.zeros_like(sees)
        self.values = np.zeros_like(sees)
        self.scores = np.where(sees, q @ k.T, -np.inf)
        self.peak = self.scores.max(-1, keepdims=True)
        self.weights = np.exp2(self.scores - self.peak)  # [R, S]
        self.filtered = limits.values > 0
        self.share = limits.eps / 2 if self.filtered else limits.eps

    def go(self) -> np.ndarray:
        """Attend to blocks until the unread mass is within `eps`; return the output [R, D]."""
        seen = np.flatnonzero(self.sees)
        first, length = int(seen[0]), int(seen[-1]) + 1
        begin, end = complete_chunks(first, length) if self.limits.eps else (0, 0)
        within = range(begin * CHUNK // BLOCK, end * CHUNK // BLOCK)
        newest = range(first // BLOCK, -(-length // BLOCK))
        self.visit([block for block in newest if block not in within], None)
        if begin < end:
            self.search(begin, end)
        output: np.ndarray = (self.weights * self.values) @ self.v / self.known[:, None]
        return output

    @property
    def known(self) -> np.ndarray:
        """Sum of the weights of the keys that were read, [R]."""
        known: np.ndarray = (self.weights * self.keys).sum(-1)
        return known

    def visit(self, blocks: list[int], floors: np.ndarray | None) -> None:
        """Read the keys of blocks, and the values of keys whose scores reach `floors` [R]."""
        tiles = 4 * BLOCK
        rows = [r for b in blocks for r in range(b * BLOCK, min((b + 1) * BLOCK, len(self.sees)))]
        known = dropped = np.zeros(len(self.q), self.q.dtype)
        for at in range(0, len(rows), tiles):
            tile = rows[at : at + tiles]
            self.keys[tile] = self.sees[tile]
            weights = self.weights[:, tile]
            known = known + weights.sum(-1)
            wanted = np.ones(len(tile), bool)
            if floors is not None:
                wanted = np.any(self.scores[:, tile] >= floors[:, None], axis=0)
            lost = dropped + (weights * ~wanted).sum(-1)
            if (lost <= self.limits.eps / 2 * known).all():
                dropped = lost
            else:
                wanted = np.ones_like(wanted)
            self.values[tile] = self.sees[tile] & wanted

    def search(self, begin: int, end: int) -> None:
        """Select among the blocks of chunks [begin, end) and read them; read more if necessary."""
        masses, bounds, greatest = self.masses(begin, end)
        shares = (masses / masses.sum(-1, keepdims=True)).sum(0)
        order = heaviest_first(shares)
        newest = np.where(self.keys, self.scores, -np.inf).max(-1)
        floors = np.maximum(greatest, newest) + math.log2(self.limits.values or 1)
        known, rest = self.known, bounds.sum(-1)
        rest = rest + SUM_ERROR * (rest + known)
        chosen = 0
        for grows in (True, False):
            start = chosen
            while chosen < len(order) and (rest > self.share * (known + rest)).any():
                rest = rest - bounds[:, order[chosen]]
                known = known + masses[:, order[chosen]] * grows
                chosen += 1
            rest = rest * (chosen < len(order))
            blocks = sorted(begin * CHUNK // BLOCK + block for block in order[start:chosen])
            for at in range(0, len(blocks), VISIT):
                self.visit(blocks[at : at + VISIT], floors if self.filtered else None)
            known = self.known
            dropped = known - (self.weights * self.values).sum(-1)
            if ((rest + dropped) / (known + rest) <= self.limits.eps).all():
                return

    def masses(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the chunks' estimated masses and their bounds [R, blocks], and largest scores [R].

        Masses are in units of 2^peak. The scores are estimates, too.
        """
        q = self.q.astype(np.float32)
        found = [
            estimate(sketch(self.k[c * CHUNK : (c + 1) * CHUNK]), q) for c in range(begin, end)
        ]
        scores = np.stack([scores for scores, _ in found], 1)
        errors = np.concatenate([error for _, error in found], -1)
        weights = np.exp2(scores - self.peak[:, :, None].astype(np.float32))
        masses = weights.reshape(len(q), -1, BLOCK).sum(-1)
        bounds = masses * np.exp2(errors) * SLACK if self.limits.bounded else masses
        kind = self.q.dtype
        return masses.astype(kind), bounds.astype(kind), scores.max((1, 2)).astype(kind)
