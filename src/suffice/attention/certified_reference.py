"""The reference of `certified`: selects and reads blocks token by token, written for reading.

Scores are in base 2, as in the native code, and float32 where a selection depends on them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

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
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    limits: Limits,
    visible: torch.Tensor | None = None,
) -> Attended:
    """Attend with q [H, T, D] to k, v [G, S, D]; `visible` bool [T, S]."""
    heads, tokens, _ = q.shape
    groups, length, _ = k.shape
    rows = heads // groups
    output = torch.empty_like(q)
    keys = torch.zeros(tokens, groups, length, dtype=torch.bool)
    values = torch.zeros_like(keys)
    for t in range(tokens):
        sees = torch.ones(length, dtype=torch.bool) if visible is None else visible[t]
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
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sees: torch.Tensor,
    ) -> None:
        self.limits, self.q, self.k, self.v, self.sees = limits, q, k, v, sees
        self.keys = torch.zeros_like(sees)
        self.values = torch.zeros_like(sees)
        self.scores = (q @ k.T).masked_fill(~sees, float("-inf"))
        self.peak = self.scores.amax(-1, keepdim=True)
        self.weights = torch.exp2(self.scores - self.peak)  # [R, S]
        self.filtered = limits.values > 0
        self.share = limits.eps / 2 if self.filtered else limits.eps

    def go(self) -> torch.Tensor:
        """Attend to blocks until the unread mass is within `eps`; return the output [R, D]."""
        seen = self.sees.nonzero()[:, 0]
        first, length = int(seen[0]), int(seen[-1]) + 1
        begin, end = complete_chunks(first, length) if self.limits.eps else (0, 0)
        within = range(begin * CHUNK // BLOCK, end * CHUNK // BLOCK)
        newest = range(first // BLOCK, -(-length // BLOCK))
        self.visit([block for block in newest if block not in within], None)
        if begin < end:
            self.search(begin, end)
        return (self.weights * self.values) @ self.v / self.known[:, None]

    @property
    def known(self) -> torch.Tensor:
        """Sum of the weights of the keys that were read, [R]."""
        return (self.weights * self.keys).sum(-1)

    def visit(self, blocks: list[int], floors: torch.Tensor | None) -> None:
        """Read the keys of blocks, and the values of keys whose scores reach `floors` [R]."""
        tiles = 4 * BLOCK
        rows = [r for b in blocks for r in range(b * BLOCK, min((b + 1) * BLOCK, len(self.sees)))]
        known = dropped = torch.zeros(len(self.q), dtype=self.q.dtype)
        for at in range(0, len(rows), tiles):
            tile = rows[at : at + tiles]
            self.keys[tile] = self.sees[tile]
            weights = self.weights[:, tile]
            known = known + weights.sum(-1)
            if floors is None:
                wanted = torch.ones(len(tile), dtype=torch.bool)
            else:
                wanted = (self.scores[:, tile] >= floors[:, None]).any(0)
            lost = dropped + (weights * ~wanted).sum(-1)
            if bool((lost <= self.limits.eps / 2 * known).all()):
                dropped = lost
            else:
                wanted = torch.ones_like(wanted)
            self.values[tile] = self.sees[tile] & wanted

    def search(self, begin: int, end: int) -> None:
        """Select among the blocks of chunks [begin, end) and read them; read more if necessary."""
        masses, bounds, greatest = self.masses(begin, end)
        shares = (masses / masses.sum(-1, keepdim=True)).sum(0)
        order = heaviest_first(shares)
        newest = self.scores.masked_fill(~self.keys, float("-inf")).amax(-1)
        floors = torch.maximum(greatest, newest) + math.log2(self.limits.values or 1)
        known, rest = self.known.clone(), bounds.sum(-1)
        rest = rest + SUM_ERROR * (rest + known)
        chosen = 0
        for grows in (True, False):
            start = chosen
            while chosen < len(order) and bool((rest > self.share * (known + rest)).any()):
                rest = rest - bounds[:, order[chosen]]
                known = known + masses[:, order[chosen]] * grows
                chosen += 1
            rest = rest * (chosen < len(order))
            blocks = sorted(begin * CHUNK // BLOCK + block for block in order[start:chosen])
            for at in range(0, len(blocks), VISIT):
                self.visit(blocks[at : at + VISIT], floors if self.filtered else None)
            known = self.known
            dropped = known - (self.weights * self.values).sum(-1)
            if bool(((rest + dropped) / (known + rest) <= self.limits.eps).all()):
                return

    def masses(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the chunks' estimated masses and their bounds [R, blocks], and largest scores [R].

        Masses are in units of 2^peak. The scores are estimates, too.
        """
        q = self.q.float()
        found = [
            estimate(sketch(self.k[c * CHUNK : (c + 1) * CHUNK]), q) for c in range(begin, end)
        ]
        scores = torch.stack([scores for scores, _ in found], 1)
        errors = torch.cat([error for _, error in found], -1)
        weights = torch.exp2(scores - self.peak[:, :, None].float())
        masses = weights.reshape(len(q), -1, BLOCK).sum(-1)
        bounds = masses * torch.exp2(errors) * SLACK if self.limits.bounded else masses
        return (
            masses.to(self.q.dtype),
            bounds.to(self.q.dtype),
            scores.amax((1, 2)).to(self.q.dtype),
        )
