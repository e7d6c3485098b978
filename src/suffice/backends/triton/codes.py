"""Attention by a softmax table: scores, what their codes weigh, and sums of all values.

A code is relative to the largest score of the row, so all scores come first. Most keys have the
lowest code: their values are not read, the sum of all values that a token sees stands for them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from suffice.backends.triton.sums import (
    offsets_of,
    product,
    queries_of,
    rows_of_unit,
    scores_of,
    seen_by,
    start_of,
    store_sums,
    tiles_of,
)

_RUN = tl.constexpr(32)  # rows that are summed at a time


@triton.jit
def score_units(
    q, k, table, blocks, counts, owner, first, length,
    scores, peaks,
    scale, heads, units,
    q_token, q_head, stride_owner, stride_page, stride_row, stride_head, table_owner, list_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Store scores [N, G, GROUP, units * UNIT] and the largest of each unit [N, G, units, GROUP].

    Of units that a token does not have, nothing is stored. Grid: units, N * G.
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    token, head = at // heads, at % heads
    mine = tl.load(owner + token)
    begin, end, count, used = seen_by(at, heads, counts, first, length, UNIT, LISTED)
    if unit < used:
        r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
        queries = queries_of(q, at, heads, q_token, q_head, GROUP, ROWS, D, DIM)
        start = start_of(mine, head, stride_owner, stride_head)
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        for tile in range(tiles_of(unit, used, count, end, UNIT, TILE, LISTED)):
            rows, seen = rows_of_unit(
                unit, tile, blocks + at * list_head, count, begin, end, UNIT, TILE, LISTED, False
            )
            where = start + offsets_of(
                rows, seen, table + mine * table_owner, stride_page, stride_row, PAGE
            )
            found = scores_of(queries, k, where, seen, scale, d, D)
            peak = tl.maximum(peak, tl.max(found, axis=1))
            place = unit * UNIT + tile * TILE + tl.arange(0, TILE)
            to = (at.to(tl.int64) * GROUP + r[:, None]) * (units * UNIT) + place[None, :]
            tl.store(scores + to, found, mask=(r < GROUP)[:, None] & (place >= 0)[None, :])
        tl.store(peaks + (at * units + unit) * GROUP + r, peak, mask=r < GROUP)


@triton.jit
def moved(
    total, begin, end, to_begin, to_end, v, start, table, stride_page, stride_row,
    D: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Return the sum [DIM] of the values [to_begin, to_end), and how many rows were read for it.

    `total` is that of [begin, end). It is not used if there is no row in both.
    """
    restarts = (to_begin >= end) | (to_end <= begin)
    total = tl.where(restarts, 0.0, total)
    begin, end = tl.where(restarts, to_begin, begin), tl.where(restarts, to_begin, end)
    d, read = tl.arange(0, DIM), 0
    for side in tl.static_range(2):
        before, after = (end, to_end) if side == 0 else (to_begin, begin)
        sign = tl.where(before < after, 1.0, -1.0)
        low, high = tl.minimum(before, after), tl.maximum(before, after)
        for run in range(low, high, _RUN):
            rows = run + tl.arange(0, _RUN)
            there = rows < high
            where = start + offsets_of(rows, there, table, stride_page, stride_row, PAGE)
            place = v + where[:, None] + d[None, :]
            values = tl.load(place, mask=there[:, None] & (d < D)[None, :], other=0)
            total += sign * tl.sum(values.to(tl.float64), axis=0)
        read += high - low
    return total, read


@triton.jit
def move_sums(
    v, table, own_sums, begins, ends, reads, first, length,
    heads, stride_owner, stride_page, stride_row, stride_head, table_owner,
    D: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Make `own_sums` float64 [B, G, D] those of the values [first, length) of each request [B].

    They are of [begins, ends) [B, G]. `reads` [B, G] gets the rows that were read. Grid: B * G.
    """
    at = tl.program_id(0)
    owner, d = at // heads, tl.arange(0, DIM)
    to_begin, to_end = tl.load(first + owner), tl.load(length + owner)
    total = tl.load(own_sums + at * D + d, mask=d < D, other=0.0)
    total, read = moved(
        total, tl.load(begins + at), tl.load(ends + at), to_begin, to_end,
        v, start_of(owner, at % heads, stride_owner, stride_head), table + owner * table_owner,
        stride_page, stride_row, D, DIM, PAGE,
    )  # fmt: skip
    tl.store(own_sums + at * D + d, total, mask=d < D)
    tl.store(begins + at, to_begin)
    tl.store(ends + at, to_end)
    tl.store(reads + at, read)


@triton.jit
def begin_sums(
    v, table, owner, first, length, counts, unit_peaks, weights, own_sums, begins, ends, moves,
    peaks, totals, sums, reads,
    heads, units, stride_owner, stride_page, stride_row, stride_head, table_owner,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, PAGE: tl.constexpr, LISTED: tl.constexpr, SUMMED: tl.constexpr,
    CODES: tl.constexpr,
):  # fmt: skip
    """Store the largest scores [N, G, GROUP] and, if SUMMED, what all rows weigh with code 0.

    Into `totals` [N, G, GROUP] and `sums` [N, G, GROUP, DIM], which begin as 0, and into `reads`
    [N, G] the values that were read for it; `moves` [B, G] of them by the last token of a request.
    Grid: N * G.
    """
    at = tl.program_id(0)
    token, head = at // heads, at % heads
    mine = tl.load(owner + token)
    begin, end, _, used = seen_by(at, heads, counts, first, length, UNIT, LISTED)
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    for unit in range(used):
        own = tl.load(unit_peaks + (at * units + unit) * GROUP + r, mask=r < GROUP, other=0.0)
        peak = tl.maximum(peak, own)
    tl.store(peaks + at * GROUP + r, peak, mask=r < GROUP)
    if SUMMED:
        held = mine * heads + head
        total = tl.load(own_sums + held * D + d, mask=d < D, other=0.0)
        last = tl.load(ends + held)
        total, read = moved(
            total, tl.load(begins + held), last, begin, end,
            v, start_of(mine, head, stride_owner, stride_head), table + mine * table_owner,
            stride_page, stride_row, D, DIM, PAGE,
        )  # fmt: skip
        tl.store(reads + at, read + tl.where(end == last, tl.load(moves + held), 0))
        lowest = tl.load(weights + (head * GROUP + r) * CODES, mask=r < GROUP, other=0.0)
        tl.store(totals + at * GROUP + r, lowest * (end - begin), mask=r < GROUP)
        wide = (at * GROUP + r[:, None]) * DIM + d[None, :]
        of_all = lowest[:, None] * total.to(tl.float32)[None, :]
        tl.store(sums + wide, of_all, mask=(r < GROUP)[:, None])


@triton.jit
def sum_codes(
    v, table, blocks, counts, owner, first, length, scores, top, borders, weights,
    peaks, totals, sums, reads,
    heads, units,
    stride_owner, stride_page, stride_row, stride_head, table_owner, list_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, LISTED: tl.constexpr,
    SUMMED: tl.constexpr, TAILED: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    """Store each unit's sums, as `sum_units` does, of weights by codes. Grid: units, N * G.

    If SUMMED, weights are less that of code 0. Values are read of rows that have a weight in some
    head, and counted in `reads` [N, G].
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    token, head = at // heads, at % heads
    mine = tl.load(owner + token)
    begin, end, count, used = seen_by(at, heads, counts, first, length, UNIT, LISTED)
    if unit < used:
        r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
        own, of_head = r < GROUP, head * GROUP + r
        peak = tl.load(top + at * GROUP + r, mask=own, other=0.0)
        lowest = tl.load(weights + of_head * CODES, mask=own, other=0.0)
        start = start_of(mine, head, stride_owner, stride_head)
        total, own_sums = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32)
        read = 0
        for tile in range(tiles_of(unit, used, count, end, UNIT, TILE, LISTED)):
            rows, seen = rows_of_unit(
                unit, tile, blocks + at * list_head, count, begin, end, UNIT, TILE, LISTED, False
            )
            place = unit * UNIT + tile * TILE + tl.arange(0, TILE)
            from_ = (at.to(tl.int64) * GROUP + r[:, None]) * (units * UNIT) + place[None, :]
            there = own[:, None] & seen[None, :]
            x = tl.load(scores + from_, mask=there, other=float("-inf")) - peak[:, None]
            weight = tl.where(there, 0.0 if SUMMED else lowest[:, None], 0.0)
            for code in range(1, CODES):  # not unrolled: all borders would not fit the registers
                border = tl.load(borders + of_head * (CODES - 1) + code - 1, mask=own, other=0.0)
                level = tl.load(weights + of_head * CODES + code, mask=own, other=0.0)
                level = level - lowest if SUMMED else level
                weight = tl.where(x >= border[:, None], level[:, None], weight)
            least = tl.load(borders + of_head * (CODES - 1), mask=own, other=float("inf"))
            wanted = seen
            if SUMMED or not TAILED:
                above = there & (x >= least[:, None])
                wanted = seen & (tl.max(above.to(tl.int32), axis=0) == 1)
            many = tl.sum(wanted.to(tl.int32), axis=0)
            total += tl.sum(weight, axis=1)
            if many > 0:
                where = start + offsets_of(
                    rows, wanted, table + mine * table_owner, stride_page, stride_row, PAGE
                )
                values = tl.load(
                    v + where[:, None] + d[None, :], mask=wanted[:, None] & (d < D)[None, :],
                    other=0,
                )  # fmt: skip
                own_sums += product(weight.to(values.dtype), values)
                read += many
        store_sums(peaks, totals, sums, at * units + unit, peak, total, own_sums, GROUP, ROWS, DIM)
        tl.atomic_add(reads + at, read, sem="relaxed")
