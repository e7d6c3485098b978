"""Ways for `tiers` to look at keys before their bases are read: do they pay?

`tiers` estimates all scores from bases of 4 bits. A cheaper look could spare the bases of keys that
cannot matter. With k' the key that a look sees, k4 its base and x[s] = q . k[s]:

    base     no other look: bases of all keys are read
    nested   k' is the upper half of the codes of k4, 2 bits an element, the means of the levels
             that share it. Blocks where q . k' + sigmas * |q| |k4 - k'| / sqrt(D) reaches the floor
             in some row and head are looked at by the other half too; |k4 - k'| is stored, a byte
    boxes    the least and the greatest of each channel over a block's bases, a byte each; blocks
             whose greatest possible score reaches the floor are looked at. The floor is known for
             nothing, which favours boxes

From there all do as `tiers` does (see `suffice.attention.tiers`): the heaviest blocks are exact
until at most `eps` of every head's mass is estimated; other rows count by their bases, unless their
weight is below `skip` times the sum. Rows that are not looked at do not count. Bytes are those of a
cache in planes, though exact rows are not rounded to it here. Bases have no fitted rounding, all
three ways alike.

Boxes are those of Quest (Tang et al. 2024), over 16 rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.attention.selectors import NEVER, Head, Selected
from suffice.attention.planes import LEVELS, Planes, rotated, split
from suffice.cache import BLOCK
from suffice.errors import unknown

SCALE = 4  # bytes of a row's scale, and of its multiple of the mean key
LOOKS = ("base", "nested", "boxes")
HALF = 4  # levels that share the upper half of their code


@dataclass(frozen=True)
class Looks:
    """The rows of the heaviest blocks exactly, others by their bases, behind a first `look`."""

    eps: float = 0.5
    skip: float = 0.0002
    look: str = "base"
    sigmas: float = 3.0

    def __post_init__(self) -> None:
        if self.look not in LOOKS:
            raise unknown("look", self.look, LOOKS)

    def attend(self, head: Head) -> Selected:
        """Return the outputs and the bytes read."""
        keys, values = (
            _planes(rows, keys=keys) for rows, keys in ((head.k, True), (head.v, False))
        )
        base = _unrotated(keys.base, head.k)
        scores = head.scores(base)
        looked, found = self._look(head, keys, scores)
        scores = scores.masked_fill(~looked, NEVER)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        total = weights.sum(-1, keepdim=True)
        heavy = self._heavy(weights, total) & head.sees
        counts = (weights >= self.skip * total).any(0) & head.sees
        exact, light = heavy & counts, counts & ~heavy
        used = torch.where(exact, head.scores(), scores.masked_fill(~light, NEVER)).softmax(-1)
        by_base = _unrotated(values.base, head.v)
        output = (used * exact) @ head.v + (used * light) @ by_base
        half = head.size / 2
        rows = half * heavy.sum(-1) + 2 * half * exact.sum(-1) + half * light.sum(-1)
        return Selected(output, found + rows + SCALE * counts.sum(-1))

    def _look(
        self, head: Head, keys: Planes, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows whose bases are read [T, S], and the bytes of all looks [T]."""
        whole = head.size / 2 + SCALE
        if self.look == "base":
            return head.sees, whole * head.seen
        first = self._nested(head, keys) if self.look == "nested" else _highest(head, keys)
        floor = (scores if self.look == "boxes" else first).logsumexp(-1, keepdim=True)
        reach = first + (self._margins(head, keys) if self.look == "nested" else 0)
        least = math.log(self.skip) if self.skip > 0 else NEVER
        wanted = (reach >= floor + least).any(0) & head.sees
        looked = _by_block(wanted.float()).amax(-1) > 0
        rows = _to_rows(looked, len(head.k)) & head.sees
        if self.look == "boxes":
            blocks = math.ceil(len(head.k) / BLOCK)
            return rows, 2 * head.size * blocks * head.seen / len(head.k) + whole * rows.sum(-1)
        first_bytes = head.size / 4 + SCALE + 1
        return rows, first_bytes * head.seen + head.size / 4 * rows.sum(-1)

    def _nested(self, head: Head, keys: Planes) -> torch.Tensor:
        """Return the scores by the upper halves of codes, [R, T, S]."""
        return head.scores(_unrotated(_upper(keys), head.k))

    def _margins(self, head: Head, keys: Planes) -> torch.Tensor:
        lost = torch.as_tensor(keys.base - _upper(keys)).norm(dim=-1).to(head.k)
        margins: torch.Tensor = head.q.norm(dim=-1)[..., None] * lost
        return self.sigmas / math.sqrt(head.size) * margins

    def _heavy(self, weights: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Return the rows of the heaviest blocks [T, S]."""
        masses = _by_block(weights).sum(-1) / total  # [R, T, B]
        order = masses.sum(0).sort(dim=-1, descending=True, stable=True).indices
        sorted_ = masses.gather(-1, order.expand_as(masses))
        before = sorted_.cumsum(-1) - sorted_  # the mass of the blocks before each
        needed = ((1 - before) > self.eps).any(0)  # [T, B], in order
        chosen = torch.zeros_like(needed).scatter(-1, order, needed)
        return _to_rows(chosen, weights.shape[-1])


def _planes(rows: torch.Tensor, *, keys: bool) -> Planes:
    return split(rows.cpu().numpy(), keys=keys)


def _upper(keys: Planes) -> np.ndarray:
    """Return rotated keys by the upper halves of their codes, [S, D]."""
    means = LEVELS.reshape(-1, HALF).mean(1)
    rows: np.ndarray = keys.scale * means[(keys.levels[..., None] >= LEVELS[HALF::HALF]).sum(-1)]
    return rows


def _unrotated(rows: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(rotated(rows)).to(like)


def _highest(head: Head, keys: Planes) -> torch.Tensor:
    """Return the highest score that a row of the block of each may have, [R, T, S]."""
    rows = torch.as_tensor(keys.base).to(head.k)
    blocks = _by_block(rows.T)  # [D, B, BLOCK]
    most, least = blocks.amax(-1), blocks.amin(-1)
    if (padding := -len(rows) % BLOCK) > 0:
        tail = rows[len(rows) + padding - BLOCK :]
        most[:, -1], least[:, -1] = tail.amax(0), tail.amin(0)
    q = torch.as_tensor(rotated(head.q.cpu().numpy())).to(head.q)
    reach = q.clamp(min=0) @ most + q.clamp(max=0) @ least
    return _to_rows(reach, len(rows))


def _by_block(rows: torch.Tensor) -> torch.Tensor:
    """Return [..., S] in blocks, [..., B, BLOCK], padded with zeros."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % BLOCK))
    return padded.view(*rows.shape[:-1], -1, BLOCK)


def _to_rows(of_blocks: torch.Tensor, rows: int) -> torch.Tensor:
    """Return what belongs to blocks [..., B] for each of their rows, [..., S]."""
    return of_blocks.repeat_interleave(BLOCK, -1)[..., :rows]
