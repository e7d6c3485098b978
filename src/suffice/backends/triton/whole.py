"""Attention to all rows, or to all of a list: a program for each unit, then units are joined."""

from __future__ import annotations

import triton
import triton.language as tl

from suffice.backends.triton.sums import (
    joined,
    load_sums,
    queries_of,
    seen_by,
    start_of,
    store_output,
    store_sums,
    sums_of_unit,
)


@triton.jit
def sum_units(
    q, k, v, table, blocks, counts, owner, first, length,
    peaks, totals, sums,
    scale, heads, units,
    q_token, q_head, stride_owner, stride_page, stride_row, stride_head, table_owner, list_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Store peaks, totals [N, G, units, GROUP] and sums [N, G, units, GROUP, DIM] of each unit.

    Grid: units, N * G.
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    token, head = at // heads, at % heads
    mine = tl.load(owner + token)
    begin, end, count, used = seen_by(at, heads, counts, first, length, UNIT, LISTED)
    if unit < used:
        peak, total, _, own, _, _ = sums_of_unit(
            queries_of(q, at, heads, q_token, q_head, GROUP, ROWS, D, DIM),
            k, v, table + mine * table_owner, blocks + at * list_head, count, begin, end,
            unit, used, start_of(mine, head, stride_owner, stride_head), scale, 0,
            stride_page, stride_row,
            GROUP, ROWS, D, DIM, UNIT, TILE, PAGE, LISTED, False, False,
        )  # fmt: skip
        place = at * units + unit
        store_sums(peaks, totals, sums, place, peak, total, own, GROUP, ROWS, DIM)


@triton.jit
def join_units(
    peaks, totals, sums, counts, first, length, out, peak_to, total_to, sum_to,
    units, out_token, out_head, heads,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Join the units of each token and key/value head, in order; store the output. Grid: N * G.

    They are added to the sums of `*_to`, in which the result is stored.
    """
    at = tl.program_id(0)
    _, _, _, used = seen_by(at, heads, counts, first, length, UNIT, LISTED)
    peak, total, own = load_sums(peak_to, total_to, sum_to, at, GROUP, ROWS, DIM)
    for unit in range(used):
        place = at * units + unit
        more_peak, more_total, more = load_sums(peaks, totals, sums, place, GROUP, ROWS, DIM)
        peak, total, own = joined(peak, total, own, more_peak, more_total, more)
    store_output(out, total, own, at, heads, out_token, out_head, GROUP, ROWS, D, DIM)
    store_sums(peak_to, total_to, sum_to, at, peak, total, own, GROUP, ROWS, DIM)
