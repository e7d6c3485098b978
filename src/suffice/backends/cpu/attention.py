"""The native traversal of one layer of a cache, as tests and other models call it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from suffice.attention.rule import AttentionRule
from suffice.backends.cpu.rules import native_rule
from suffice.native import core

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache


def attend(
    rule: AttentionRule | None,
    q: np.ndarray,
    cache: KVCache,
    layer: int,
    *,
    scale: float,
    window: int | None = None,
    blocks: list[int] | None = None,
    audit: np.ndarray | None = None,
    unread: float = 0.0,
) -> tuple[np.ndarray, list[core.Reads]]:
    """Return the output [H, T, D] of one layer of a cache, and what each key/value head read.

    `rule` is a technique's rule; None reads all rows. `q` float32 [H, T, D] are the queries of the
    cache's T tentative rows or, if there are none, of its last T rows; each sees the rows before
    it. `window`: the most rows that a query sees, its own included. `blocks`: the blocks of 16 rows
    to read, in order (None = all visible). `audit` float32 [5, T, H] receives the errors: see
    `suffice.trace.Audit`. `unread`: the queries are a tile of a prompt, which may leave this share
    of its softmaxes unread, on average.
    """
    count = q.shape[1]
    visible = cache.visible() or causal(count)
    if window is not None and window < count:
        visible = [_within(window, bits, visible) for bits in visible]
    length = cache.length if cache.tentative else cache.length - count
    rows = np.ascontiguousarray(q.swapaxes(0, 1))
    out = np.empty_like(rows)
    masks = np.array(visible, np.int64).astype(np.int32)
    order = None if blocks is None else np.array(blocks, np.int32)
    native = None if rule is None else native_rule(rule)
    reads = cache.native.attend(
        layer, length, rows, masks, scale, window or 0, order, out, native, audit, unread
    )
    return out.swapaxes(0, 1), reads


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
