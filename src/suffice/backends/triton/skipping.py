"""BLASST on a GPU: scores of all keys, then the values of the tiles that stay."""

from __future__ import annotations

import torch

from suffice.backends.triton.call import UNIT, Call, Reads
from suffice.backends.triton.heavy_tiles import score_tiles, sum_heavy_tiles
from suffice.backends.triton.rules import HeadRules
from suffice.cache import BLOCK

_ALL = 1 << 30  # rows: more than there are
_LOOKED = 256  # tiles that are looked back at together


def attend_skipping(call: Call, rules: HeadRules) -> tuple[torch.Tensor, Reads]:
    """Return the output, without the tiles that are left out; see `attend`."""
    given = rules.parameters
    tile, split = int(given["check_blocks"]) * BLOCK, int(given["split"]) or _ALL
    units = call.units(UNIT, None)
    _, k, v, table, _, _, *of_tokens = call.inputs(None)
    scores, largest = (call.empty(call.group, units * each) for each in (UNIT, UNIT // tile))
    shapes = {**call.part, "UNIT": UNIT, "TILE": tile, "PAGE": call.held.page}
    strides = call.strides(None)[:-1]
    score_tiles[(units, call.pairs)](
        call.q, k, table, *of_tokens, scores, largest, call.scale, call.heads, units, *strides,
        **shapes,
    )  # fmt: skip
    of_units, values, sums = call.of_units(units), call.zeros(units), call.none()
    sum_heavy_tiles[(units, call.pairs)](
        v, table, *of_tokens, scores, largest, *of_units, values, rules.limits["factor"], split,
        call.heads, units, *strides[2:], **shapes | {"num_warps": 4}, TILES=_LOOKED,
    )  # fmt: skip
    call.join(of_units, sums, None, UNIT)
    seen = (call.tokens.length - call.tokens.first)[:, None].expand(call.count, call.heads)
    read = values.sum(-1, dtype=torch.int32).view(seen.shape)
    return call.out, Reads(seen, read, seen + read, sums)
