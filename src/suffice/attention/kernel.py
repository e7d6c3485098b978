"""The native traversal of one layer of a cache, as tests and other models call it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from suffice.attention import Attention
    from suffice.attention.softmax import Levels
    from suffice.cache.kv import KVCache
    from suffice.native import core


def rules_of(
    attention: Attention, levels: Sequence[Sequence[Levels]], layers: int, kv_heads: int
) -> list[list[core.Rule]]:
    """Return what the native traversal does in each layer and key/value head, [L][G].

    A layer in which everything is read has no rules. `levels` [L][H] are those of a coded softmax,
    empty without one.
    """
    from suffice.attention.softmax import of_group

    found = []
    for layer in range(layers):
        own = levels[layer] if levels else None
        group = len(own or ()) // kv_heads
        rules = [
            coded_rule(attention.rule(), of_group(own, head, group)) for head in range(kv_heads)
        ]
        found.append([rule for rule in rules if rule is not None])
    return found


def coded_rule(rule: core.Rule | None, levels: Sequence[Levels] | None) -> core.Rule | None:
    """Return a technique's rule with the levels of the query heads that share keys and values.

    None for `levels` leaves the rule as it is.
    """
    if levels is None:
        return rule
    from suffice.native import core

    rule = core.Rule() if rule is None else rule
    borders = [[border / math.log(2) for border in own.borders] for own in levels]
    rule.set_levels(borders, [list(own.weights) for own in levels])
    return rule


def attend(
    rule: core.Rule | None,
    q: torch.Tensor,
    cache: KVCache,
    layer: int,
    *,
    scale: float,
    window: int | None = None,
    blocks: list[int] | None = None,
) -> tuple[torch.Tensor, list[core.Reads]]:
    """Return the output [H, T, D] and what each key/value head read; see `Attention.native`."""
    import torch

    count = q.shape[1]
    visible = cache.visible() or [(2 << i) - 1 for i in range(count)]
    if window is not None and window < count:
        visible = [_within(window, bits, visible) for bits in visible]
    length = cache.length if cache.tentative else cache.length - count
    rows = q.detach().transpose(0, 1).contiguous().numpy()
    out = np.empty_like(rows)
    masks = np.array(visible, np.int64).astype(np.int32)
    order = None if blocks is None else np.array(blocks, np.int32)
    reads = cache.native.attend(layer, length, rows, masks, scale, window or 0, order, out, rule)
    return torch.from_numpy(out).transpose(0, 1), reads


def _within(window: int, bits: int, visible: list[int]) -> int:
    """Return those of a row's ancestors, as a bit mask, that are less than `window` tokens back."""
    depth = bits.bit_count()
    near = [
        1 << j for j, b in enumerate(visible) if bits >> j & 1 and depth - b.bit_count() < window
    ]
    return sum(near)
