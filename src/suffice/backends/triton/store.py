"""New rows of a step, put where the cache has them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from suffice.backends.triton.call import Held

_TILE = 16  # new columns that a program stores


@triton.jit
def store_columns(
    k, v, keys, values, place,
    columns, k_owner, k_head, k_column, v_owner, v_head, v_column,
    stride_owner, stride_head, stride_row,
    D: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Store columns k, v [B, G, T, D] in rows `place` [B, T]; below 0: nowhere.

    Grid: T / TILE, G, B.
    """
    owner, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column, d = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, DIM)
    there = column < columns
    row = tl.load(place + owner * columns + column, mask=there, other=-1)
    mask = (there & (row >= 0))[:, None] & (d < D)[None, :]
    to = owner * stride_owner + head.to(tl.int64) * stride_head
    to += row.to(tl.int64)[:, None] * stride_row + d[None, :]
    of_k = owner * k_owner + head * k_head + column[:, None] * k_column + d[None, :]
    of_v = owner * v_owner + head * v_head + column[:, None] * v_column + d[None, :]
    tl.store(keys + to, tl.load(k + of_k, mask=mask, other=0), mask=mask)
    tl.store(values + to, tl.load(v + of_v, mask=mask, other=0), mask=mask)


def store(held: Held, key: torch.Tensor, value: torch.Tensor, place: torch.Tensor) -> None:
    """Store new keys and values [B, G, T, D] in rows `place` int32 [B, T]; below 0: nowhere.

    `held` is contiguous.
    """
    batch, heads, columns, size = key.shape
    tile = min(_TILE, triton.next_power_of_2(columns))
    owner, _, row, head = held.strides
    store_columns[(-(-columns // tile), heads, batch)](
        key, value, held.keys, held.values, place.contiguous(),
        columns, *key.stride()[:3], *value.stride()[:3], owner, head, row,
        D=size, DIM=triton.next_power_of_2(size), TILE=tile,
    )  # fmt: skip
