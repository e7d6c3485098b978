"""The reference of `certified`: what is visited and why, token by token, written for reading.

Scores are in base 2, as in the native code, and float32 where a choice follows from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from suffice.attention.certified import BLOCK, CHUNK, LAG, ROUNDING, SLACK, Certified
from suffice.attention.traversal import Attended


@dataclass(frozen=True)
class Sketch:
    """Of one chunk of keys: 4-bit codes [64, D], scale and low [D], residual lengths [64]."""

    codes: torch.Tensor
    scale: torch.Tensor
    low: torch.Tensor
    residual: torch.Tensor


def sketch(keys: torch.Tensor) -> Sketch:
    """Return the sketch of a chunk of keys [64, D]."""
    keys = keys.float()
    low = keys.amin(0)
    scale = (keys.amax(0) - low) / 15
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    codes = ((keys - low) * inverse).round().clamp(0, 15)
    return Sketch(codes, scale, low, (keys - (scale * codes + low)).norm(dim=-1) * SLACK)


def estimate(chunk: Sketch, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores [R, 64] of queries [R, D] and how far off each is at most, per block [R, 4].

    The queries, times the scale of each channel, are rounded to 8 bits. What that leaves is
    (code - 7.5) times the difference, at most 7.5 times it, once 7.5 times the sum is added.
    """
    folded = q * chunk.scale
    unit = folded.abs().amax(-1, keepdim=True) / 127
    rounded = torch.where(unit > 0, (folded / unit).round(), torch.zeros_like(folded))
    difference = folded - rounded * unit
    bias = (q * chunk.low).sum(-1) + 7.5 * difference.sum(-1)
    scores = (rounded @ chunk.codes.T) * unit + bias[:, None]
    widest = chunk.residual.reshape(-1, BLOCK).amax(-1)
    offset = 7.5 * difference.abs().sum(-1, keepdim=True)
    return scores, q.norm(dim=-1, keepdim=True) * widest * SLACK + offset + ROUNDING


def attend(
    technique: Certified,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
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
            walk = Walk(technique, queries, k[g], v[g], sees)
            output[own, t] = walk.go()
            keys[t, g], values[t, g] = walk.keys, walk.values
    return Attended(output, keys, values)


class Walk:
    """One token's traversal for one group of R heads."""

    def __init__(
        self,
        technique: Certified,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sees: torch.Tensor,
    ) -> None:
        self.technique, self.q, self.k, self.v, self.sees = technique, q, k, v, sees
        self.keys = torch.zeros_like(sees)
        self.values = torch.zeros_like(sees)
        scores = (q @ k.T).masked_fill(~sees, float("-inf"))
        self.peak = scores.amax(-1, keepdim=True)
        self.weights = torch.exp2(scores - self.peak)  # [R, S]
        self.greatest = torch.zeros(len(q), dtype=q.dtype)

    def go(self) -> torch.Tensor:
        """Visit blocks until little is missing; return the output [R, D]."""
        seen = self.sees.nonzero()[:, 0]
        first, length = int(seen[0]), int(seen[-1]) + 1
        begin = -(-first // CHUNK)
        end = max((length - LAG) // CHUNK, begin) if length >= LAG + CHUNK else begin
        if self.technique.eps == 0 or begin == end:
            begin = end = 0
        newest = range(-(-length // BLOCK) - 1, end * CHUNK // BLOCK - 1, -1)
        oldest = range(begin * CHUNK // BLOCK - 1, first // BLOCK - 1, -1)
        for block in (*newest, *oldest):
            self.visit([block], always=True)
        if begin < end:
            self.visit_sketched(begin, end)
        return (self.weights * self.values) @ self.v / self.known[:, None]

    @property
    def known(self) -> torch.Tensor:
        """Sum of the weights of the visited keys, [R]."""
        return (self.weights * self.keys).sum(-1)

    @property
    def dropped(self) -> torch.Tensor:
        """Sum of the weights of the visited keys whose values were not read, [R]."""
        return self.known - (self.weights * self.values).sum(-1)

    def visit(self, blocks: list[int], *, always: bool = False) -> None:
        """Read the keys of some blocks, and the values that are worth it."""
        rows = [r for b in blocks for r in range(b * BLOCK, min((b + 1) * BLOCK, len(self.sees)))]
        before = self.dropped
        self.keys[rows] = self.sees[rows]
        weights = self.weights[:, rows]
        self.greatest = torch.maximum(self.greatest, weights.amax(-1))
        wanted = (weights >= self.technique.v * self.greatest[:, None]).any(0)
        dropped = before + (weights * ~wanted).sum(-1)  # half of eps is for these
        too_much = bool((dropped > self.technique.eps / 2 * self.known).any())
        self.values[rows] = self.sees[rows] & (wanted | always | too_much)

    def visit_sketched(self, begin: int, end: int) -> None:
        """Visit blocks of the chunks [begin, end), the heaviest first, until little is missing."""
        masses, bounds = self.masses(begin, end)
        shares = (masses / masses.sum(-1, keepdim=True)).sum(0)
        order = shares.sort(descending=True, stable=True).indices.tolist()
        for at in range(0, len(order) + 1, self.technique.look):
            rest = bounds[:, order[at:]].sum(-1)
            known = self.known
            if bool(((rest + self.dropped) / (known + rest) <= self.technique.eps).all()):
                return
            chosen = order[at : at + self.technique.look]
            if chosen:
                self.visit([begin * CHUNK // BLOCK + block for block in chosen])

    def masses(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the estimated masses of the chunks' blocks and their bounds, [R, blocks]."""
        q = self.q.float()
        found = [
            estimate(sketch(self.k[c * CHUNK : (c + 1) * CHUNK]), q) for c in range(begin, end)
        ]
        scores = torch.stack([scores for scores, _ in found], 1)
        errors = torch.cat([error for _, error in found], -1)
        weights = torch.exp2(scores - self.peak[:, :, None].float())
        masses = weights.reshape(len(q), -1, BLOCK).sum(-1)
        bounds = masses * torch.exp2(errors) * SLACK if self.technique.bounded else masses
        return masses, bounds
