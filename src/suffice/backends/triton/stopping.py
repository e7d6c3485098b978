"""Attention that stops: several programs read ahead, and what is read is joined in order.

Units of rows have an order. `splits` programs for each token and key/value head take every
`splits`-th unit. A wave is the next unit of each program. The program that ends a wave last joins
its units, in order, to those before, and asks the rule after each: so the output, and the row at
which reading stops, are those of reading one unit after another, whatever the number of programs
and whichever is first. Programs never wait. They see a stop before their next unit; what they have
read beyond it is left out, and counted as fetched.

All programs end waves in the same order, so if a wave has ended, those before it have. Of several
that end waves at once one joins; the others leave theirs to it.
"""

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

# Fields of the integers [N, G, FIELDS] that programs share; all begin as 0.
STOPPED, PENDING, TURN, KEYS, VALUES, FETCHED, UNITS, WAVES = range(8)
FIELDS = WAVES  # those of the waves, the numbers of programs that ended each, follow

# Rules
ART, AET = range(2)

_STOPPED, _PENDING, _TURN = tl.constexpr(STOPPED), tl.constexpr(PENDING), tl.constexpr(TURN)
_KEYS, _VALUES, _FETCHED = tl.constexpr(KEYS), tl.constexpr(VALUES), tl.constexpr(FETCHED)
_UNITS, _WAVES = tl.constexpr(UNITS), tl.constexpr(WAVES)
_ART, _AET = tl.constexpr(ART), tl.constexpr(AET)


@triton.jit
def art_checks(total, sums, probe, steady, change, angle, probed):
    """Return the probe [ROWS, DIM] of the output, and each head's stable checks in a row [ROWS].

    Equations 2 and 3 of the paper, of the elements that are `probed` [DIM].
    """
    x = tl.where(probed[None, :], sums / tl.maximum(total, 1e-30)[:, None], 0.0)
    moved = tl.sqrt(tl.sum((x - probe) * (x - probe), axis=1))
    norms = tl.sqrt(tl.sum(x * x, axis=1)) * tl.sqrt(tl.sum(probe * probe, axis=1))
    stable = (moved < change) & (tl.sum(x * probe, axis=1) > (1 - angle) * norms)
    return x, tl.where(stable, steady + 1, 0)


@triton.jit
def aet_has_enough(total, peak, top, known, length, share):
    """Return which heads may stop [ROWS]: lines 12 and 14 of Scrooge's Algorithm 1.

    `top` is the largest score of the rows that are always read, and `known` of `length` keys were.
    """
    base = tl.where(peak == float("-inf"), 0.0, peak)
    average = (total - tl.exp2(top - base)) / tl.maximum(known - 1, 1)
    return (known > 1) & ((total + average * (length - known)) * share <= total)


@triton.jit
def read_until_stop(
    q, k, v, table, blocks, counts, owner, first, length,
    peaks, totals, kepts, sums, keys, values,
    shared, peak_run, total_run, sum_run, probe_run, steady_run, top, known_before,
    out, limits, floors,
    scale, two, patience, heads, units, splits,
    q_token, q_head, stride_owner, stride_page, stride_row, stride_head, table_owner, list_head,
    out_token, out_head, shared_size,
    RULE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    DIM: tl.constexpr, PROBE: tl.constexpr, UNIT: tl.constexpr, TILE: tl.constexpr,
    PAGE: tl.constexpr, LISTED: tl.constexpr, MARKED: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """Read units until the rule stops, and store the output [N, H, D]. Grid: splits, N * G.

    `peaks`, `totals` [N, G, units, GROUP], `sums` [N, G, units, GROUP, DIM], and the rows read,
    `keys`, `values` [N, G, units], are of single units; `*_run` of those joined so far, which begin
    with `known_before` [N, G] rows. With FILTERS, values of keys that all heads score below `top` +
    `floors` [G] are not read; `kepts` [N, G, units, GROUP] gets the weights of the others. `limits`
    [G] and `two` are the rule's thresholds.
    """
    split, at = tl.program_id(0), tl.program_id(1)
    mine = tl.load(owner + at // heads)
    begin, end, count, used = seen_by(at, heads, counts, first, length, UNIT, LISTED)
    queries = queries_of(q, at, heads, q_token, q_head, GROUP, ROWS, D, DIM)
    start = start_of(mine, at % heads, stride_owner, stride_head)
    ints = shared + at * shared_size
    r, one, least, wave = tl.arange(0, ROWS), tl.load(limits + at % heads), 0.0, split * 0
    if FILTERS:
        least = tl.load(top + at * GROUP + r, mask=r < GROUP, other=0.0)
        least += tl.load(floors + at % heads)
    # An atomic is one read for all threads of a program: they must go on, or end, together.
    while (wave * splits < used) & (tl.atomic_add(ints + _STOPPED, 0, sem="acquire") == 0):
        unit, place = wave * splits + split, at.to(tl.int64) * units + wave * splits + split
        peak, total, kept, own, of_keys, of_values = sums_of_unit(
            queries, k, v, table + mine * table_owner, blocks + at * list_head, count, begin, end,
            unit, used, start, scale, least, stride_page, stride_row,
            GROUP, ROWS, D, DIM, UNIT, TILE, PAGE, LISTED, MARKED, FILTERS,
        )  # fmt: skip
        if unit < used:
            store_sums(peaks, totals, sums, place, peak, total, own, GROUP, ROWS, DIM)
            if FILTERS:
                tl.store(kepts + place * GROUP + r, kept, mask=r < GROUP, cache_modifier=".cg")
            tl.store(keys + place, of_keys, cache_modifier=".cg")
            tl.store(values + place, of_values, cache_modifier=".cg")
            tl.atomic_add(ints + _FETCHED, of_keys + of_values, sem="relaxed")
        tl.debug_barrier()  # all of the program's stores come before its arrival
        ended = tl.atomic_add(ints + _WAVES + wave, 1, sem="acq_rel") == splits - 1
        joins = ended
        if ended:
            joins = tl.atomic_add(ints + _PENDING, 1, sem="acq_rel") == 0
        while joins:
            _join_wave(
                peaks, totals, sums, keys, values, ints,
                peak_run, total_run, sum_run, probe_run, steady_run, top,
                known_before, out, at, heads, used, units, splits,
                end - begin, one, two, patience, out_token, out_head,
                RULE, GROUP, ROWS, D, DIM, PROBE,
            )  # fmt: skip
            tl.debug_barrier()
            joins = tl.atomic_add(ints + _PENDING, -1, sem="acq_rel") > 1
        wave += 1


@triton.jit
def _join_wave(
    peaks, totals, sums, keys, values, ints,
    peak_run, total_run, sum_run, probe_run, steady_run, top,
    known_before, out, at, heads, used, units, splits,
    length, one, two, patience, out_token, out_head,
    RULE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    DIM: tl.constexpr, PROBE: tl.constexpr,
):  # fmt: skip
    """Join the next wave's units, in order, until the rule stops; store the output at the end."""
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    probed = _is_probed(d, D, PROBE)
    turn = tl.load(ints + _TURN, cache_modifier=".cg")
    stopped = tl.load(ints + _STOPPED, cache_modifier=".cg") != 0
    own, to = r < GROUP, at * GROUP + r
    wide = to[:, None] * DIM + d[None, :]
    peak, total, sum_ = load_sums(peak_run, total_run, sum_run, at, GROUP, ROWS, DIM)
    known = tl.load(known_before + at) + tl.load(ints + _KEYS, cache_modifier=".cg")
    of_keys, of_values = 0, 0
    probe, steady, highest = sum_, tl.zeros([ROWS], tl.int32), total
    if RULE == _AET:
        highest = tl.load(top + to, mask=own, other=0.0)
    if RULE == _ART:
        probe = tl.load(probe_run + wide, mask=own[:, None], other=0.0, cache_modifier=".cg")
        steady = tl.load(steady_run + to, mask=own, other=0, cache_modifier=".cg")
    unit = turn * splits
    last = tl.minimum(unit + splits, used)
    before = unit
    while (unit < last) & (not stopped):
        place = at * units + unit
        more_peak, more_total, more = load_sums(peaks, totals, sums, place, GROUP, ROWS, DIM)
        peak, total, sum_ = joined(peak, total, sum_, more_peak, more_total, more)
        more_keys = tl.load(keys + at * units + unit, cache_modifier=".cg")
        of_keys += more_keys
        of_values += tl.load(values + at * units + unit, cache_modifier=".cg")
        enough = r >= GROUP
        if RULE == _ART:
            probe, steady = art_checks(total, sum_, probe, steady, one, two, probed)
            enough = enough | (steady >= patience)
        if RULE == _AET:
            enough = enough | aet_has_enough(total, peak, highest, known + of_keys, length, one)
        stopped = (tl.min(enough.to(tl.int32), axis=0) == 1) & (more_keys > 0)
        unit += 1
    tl.debug_barrier()  # all threads have loaded what is now replaced
    tl.store(ints + _KEYS, tl.load(ints + _KEYS, cache_modifier=".cg") + of_keys)
    tl.store(ints + _VALUES, tl.load(ints + _VALUES, cache_modifier=".cg") + of_values)
    tl.store(ints + _TURN, turn + 1)
    if unit > before:
        store_sums(peak_run, total_run, sum_run, at, peak, total, sum_, GROUP, ROWS, DIM)
        tl.store(ints + _UNITS, unit)
        if RULE == _ART:
            tl.store(probe_run + wide, probe, mask=own[:, None])
            tl.store(steady_run + to, steady, mask=own)
        if stopped | (unit == used):
            store_output(out, total, sum_, at, heads, out_token, out_head, GROUP, ROWS, D, DIM)
            tl.store(ints + _STOPPED, 1)


@triton.jit
def _is_probed(d, D: tl.constexpr, PROBE: tl.constexpr):
    """Return which elements of an output are probed [DIM]: PROBE in runs of 16, spread over D."""
    runs: tl.constexpr = D // 16
    taken: tl.constexpr = PROBE // 16
    if taken >= runs:
        return d < D
    # Run i * runs // taken for i < taken: run x is one of them if the next i that reaches it does.
    x = d // 16
    i = (x * taken + runs - 1) // runs
    return (d < D) & (i < taken) & (i * runs // taken == x)
