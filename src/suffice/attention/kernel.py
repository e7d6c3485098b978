"""The native traversal of one layer of a cache, as tests and other models call it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from suffice.attention.levels import Levels
    from suffice.cache.kv import KVCache
    from suffice.native import core


def coded_rules(
    rules: Sequence[Sequence[core.AttentionRule | None]], levels: Sequence[Sequence[Levels]]
) -> list[list[core.AttentionRule]]:
    """Return rules [L][G] with the levels [L][H] of a coded softmax, which without one are empty.

    None for a rule: everything is read.
    """
    from suffice.attention.levels import of_group
    from suffice.native import core

    found = []
    for layer, own in enumerate(rules):
        of_layer = levels[layer] if levels else None
        group = len(of_layer or ()) // len(own)
        coded = [coded_rule(rule, of_group(of_layer, g, group)) for g, rule in enumerate(own)]
        found.append([core.AttentionRule.read_all() if rule is None else rule for rule in coded])
    return found


def coded_rule(
    rule: core.AttentionRule | None, levels: Sequence[Levels] | None
) -> core.AttentionRule | None:
    """Return a technique's rule with the levels of the query heads that share keys and values.

    None for `levels` leaves the rule as it is.
    """
    if levels is None:
        return rule
    from suffice.native import core

    rule = core.AttentionRule.read_all() if rule is None else rule
    borders = [[border / math.log(2) for border in own.borders] for own in levels]
    return rule.with_softmax_tables(borders, [list(own.weights) for own in levels])


def attend(
    rule: core.AttentionRule | None,
    q: torch.Tensor,
    cache: KVCache,
    layer: int,
    *,
    scale: float,
    window: int | None = None,
    blocks: list[int] | None = None,
    audit: np.ndarray | None = None,
) -> tuple[torch.Tensor, list[core.Reads]]:
    """Return the output [H, T, D] and what each key/value head read; see `Attention.native`.

    `audit` float32 [3, T, H] takes what was left out: see `suffice.trace.Audit`.
    """
    import torch

    count = q.shape[1]
    visible = cache.visible() or causal(count)
    if window is not None and window < count:
        visible = [_within(window, bits, visible) for bits in visible]
    length = cache.length if cache.tentative else cache.length - count
    rows = q.detach().transpose(0, 1).contiguous().numpy()
    out = np.empty_like(rows)
    masks = np.array(visible, np.int64).astype(np.int32)
    order = None if blocks is None else np.array(blocks, np.int32)
    reads = cache.native.attend(
        layer, length, rows, masks, scale, window or 0, order, out, rule, audit
    )
    return torch.from_numpy(out).transpose(0, 1), reads


def causal(count: int) -> list[int]:
    """Return, for each row of a chain, the bit mask of itself and those before, which it sees."""
    return [(2 << row) - 1 for row in range(count)]


def _within(window: int, bits: int, visible: list[int]) -> int:
    """Return those of a row's ancestors, as a bit mask, that are less than `window` tokens back."""
    depth = bits.bit_count()
    near = [
        1 << j for j, b in enumerate(visible) if bits >> j & 1 and depth - b.bit_count() < window
    ]
    return sum(near)
