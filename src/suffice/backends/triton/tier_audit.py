"""How far attention in tiers was from exact attention, without the rounding of kernels' sums."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from suffice.backends.triton.bases import Bases
from suffice.backends.triton.call import Call
from suffice.cache import BLOCK


class Weighed(NamedTuple):
    """What an output is made of: the rows of `heavy` blocks int8 [N G, blocks], whose `scores` [N
    G, R, C] are exact, and others that reach a head's floor [N G, R], by their bases.

    Scores of rows that a token does not see may be anything.
    """

    scores: torch.Tensor
    floors: torch.Tensor
    heavy: torch.Tensor


class Bounds(NamedTuple):
    """What bounds each head's distance to the exact softmax, and the shift of its output [N G, R]:
    see `suffice.trace`."""

    distance: torch.Tensor
    shift: torch.Tensor


def tier_figures(
    call: Call, bases: Bases, weighed: Weighed, bounds: Bounds | None
) -> tuple[torch.Tensor, ...]:
    """Return `missing`, `bound`, `shift` and `shift_bound` of an audit, [N G, R] each.

    Without bounds all but the first are not a number. Keys and values are contiguous.
    """
    tokens, room = call.tokens, bases.rows
    owner, place = tokens.owner.long(), torch.arange(bases.rows, device=call.q.device)
    seen = (place >= tokens.first[:, None]) & (place < tokens.length[:, None])
    seen = seen.repeat_interleave(call.heads, 0)
    q = call.scale * call.q.float().view(call.count, call.heads, call.group, call.size)
    exact = (q @ call.held.keys[owner].float().mT).flatten(0, 1)
    heavy = weighed.heavy.bool().repeat_interleave(BLOCK, -1)[:, :room]
    counts = heavy | (weighed.scores >= weighed.floors[..., None]).any(1)
    truth, used = (
        (x.where(there[:, None], -torch.inf) * math.log(2)).softmax(-1)
        for x, there in ((exact, seen), (weighed.scores, seen & counts))
    )
    missing = (truth - used).abs().sum(-1) / 2
    unknown = torch.full_like(missing, torch.nan)
    if bounds is None:
        return missing, unknown, unknown, unknown
    values = call.held.values[owner].float().flatten(0, 1)
    by_bases = bases.values()[owner].flatten(0, 1)
    moved = used @ torch.where(heavy[..., None], values, by_bases) - truth @ values
    longest = torch.where(seen, values.norm(dim=-1), 0).amax(-1, keepdim=True)
    return missing, bounds.distance, moved.norm(dim=-1) / longest, bounds.shift
