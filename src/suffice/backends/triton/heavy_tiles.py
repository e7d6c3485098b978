"""BLASST: one kernel scores all keys, the next reads the values of the tiles that stay.

A tile is compared with the largest score of the rows before it, which other programs score. So
scores, and the largest of each tile, are stored: programs of the second kernel look back, and none
waits. Units of UNIT rows are counted from the one that holds a token's first row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from suffice.backends.triton.sums import (
    added,
    offsets_of,
    queries_of,
    scores_of,
    start_of,
    store_sums,
)


@triton.jit
def score_tiles(
    q, k, table, owner, first, length, scores, largest,
    scale, heads, units,
    q_token, q_head, stride_owner, stride_page, stride_row, stride_head, table_owner,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Store scores [N, G, GROUP, rows], and the largest of each tile [N, G, GROUP, tiles].

    Grid: units, N * G.
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    mine = tl.load(owner + at // heads)
    begin, end = tl.load(first + at // heads), tl.load(length + at // heads)
    queries = queries_of(q, at, heads, q_token, q_head, GROUP, ROWS, D, DIM)
    start = start_of(mine, at % heads, stride_owner, stride_head)
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    line = (at * GROUP + r).to(tl.int64) * units
    base = begin // UNIT * UNIT
    low = base + unit * UNIT
    for row in range(low, tl.minimum(low + UNIT, end), TILE):
        rows = row + tl.arange(0, TILE)
        seen = (rows >= begin) & (rows < end)
        place = table + mine * table_owner
        where = start + offsets_of(rows, seen, place, stride_page, stride_row, PAGE)
        found = scores_of(queries, k, where, seen, scale, d, D)
        to = scores + line[:, None] * UNIT + (rows - base)[None, :]
        tl.store(to, found, mask=(r < GROUP)[:, None])
        to_tile = largest + line * (UNIT // TILE) + (row - base) // TILE
        tl.store(to_tile, tl.max(found, axis=1), mask=r < GROUP)


@triton.jit
def sum_heavy_tiles(
    v, table, owner, first, length, scores, largest, peaks, totals, sums, values,
    factors, split, heads, units,
    stride_owner, stride_page, stride_row, stride_head, table_owner,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Store peaks, totals [N, G, units, GROUP] and sums [N, G, units, GROUP, DIM] of each unit.

    And `values` [N, G, units], how many were read: of tiles whose largest weight is at least
    `factors` [G] over the number of keys, in units of the largest weight so far, in some head. "So
    far" begins again at multiples of `split` rows. TILES tiles are looked back at together. Grid:
    units, N * G.
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    mine = tl.load(owner + at // heads)
    begin, end = tl.load(first + at // heads), tl.load(length + at // heads)
    start = start_of(mine, at % heads, stride_owner, stride_head)
    share = tl.load(factors + at % heads) / tl.maximum(end - begin, 1)
    leaves_out = (share > 0) & (share <= 1)
    least = tl.where(leaves_out, tl.log2(tl.maximum(share, 1e-30)), float("-inf"))
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    line = (at * GROUP + r).to(tl.int64) * units
    base = begin // UNIT * UNIT
    low = base + unit * UNIT
    if low < end:
        tiles = largest + line * (UNIT // TILE)
        running = tl.full([ROWS], float("-inf"), tl.float32)
        here = (low - base) // TILE
        for tile in range((tl.maximum(begin, low - low % split) - base) // TILE, here, TILES):
            before = tile + tl.arange(0, TILES)
            there = (r < GROUP)[:, None] & (before < here)[None, :]
            found = tl.load(tiles[:, None] + before[None, :], mask=there, other=float("-inf"))
            running = tl.maximum(running, tl.max(found, axis=1))
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total, own = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32)
        read = 0
        for row in range(tl.maximum(low, begin // TILE * TILE), tl.minimum(low + UNIT, end), TILE):
            found = tl.load(tiles + (row - base) // TILE, mask=r < GROUP, other=0.0)
            running = tl.maximum(tl.where(row % split == 0, float("-inf"), running), found)
            heavy = (found - running >= least) & (r < GROUP)
            if tl.max(heavy.to(tl.int32), axis=0) == 1:
                rows = row + tl.arange(0, TILE)
                seen = (rows >= begin) & (rows < end)
                place = scores + line[:, None] * UNIT + (rows - base)[None, :]
                scored = tl.load(place, mask=(r < GROUP)[:, None], other=0.0)
                place = table + mine * table_owner
                where = start + offsets_of(rows, seen, place, stride_page, stride_row, PAGE)
                there = seen[:, None] & (d < D)[None, :]
                wanted = tl.load(v + where[:, None] + d[None, :], mask=there, other=0)
                peak, total, _, own = added(peak, total, total, own, scored, wanted, seen, False)
                read += tl.sum(seen.to(tl.int32), axis=0)
        store_sums(peaks, totals, sums, at * units + unit, peak, total, own, GROUP, ROWS, DIM)
        tl.store(values + at * units + unit, read)
