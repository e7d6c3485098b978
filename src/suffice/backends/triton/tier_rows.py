"""Rows of three tiers: scores by bases, exact ones of heavy rows, and sums of both kinds of values.

Queries for bases are rotated and rounded to 8 bits, so that products with levels are exact.
Elements of even and of odd places, which share bytes, lie apart.
"""

from __future__ import annotations

import triton
import triton.language as tl

from suffice.attention.planes import ERROR_UNIT, GREATEST
from suffice.backends.triton.encode import length_of, level_of, rotated
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

SLACK = 1.001  # of errors, as in `suffice.attention.tiers_reference`
EVERY = -1e30  # a floor that every row reaches

_SLACK, _EVERY = tl.constexpr(SLACK), tl.constexpr(EVERY)
_GREATEST, _ERROR_UNIT = tl.constexpr(GREATEST), tl.constexpr(float(ERROR_UNIT))
_MOST_ERROR = tl.constexpr(100.0)  # in base 2: more would exceed float32, and bound no better


@triton.jit
def _at(at, place, room, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Return where places [M] of a pair lie in [N, G, GROUP, room], [ROWS, M]."""
    return (at.to(tl.int64) * GROUP + tl.arange(0, ROWS)[:, None]) * room + place[None, :]


@triton.jit
def _by_block(x, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Return the sums of each block's 16 rows, [ROWS, TILE / 16]."""
    return tl.sum(tl.reshape(x, [ROWS, TILE // 16, 16]), axis=2)


@triton.jit
def _blocks_of(rows, TILE: tl.constexpr):
    """Return the blocks of the rows of a tile, [TILE / 16]."""
    return tl.max(tl.reshape(rows // 16, [TILE // 16, 16]), axis=1)


@triton.jit
def _counting(scores, least):
    """Return which rows [TILE] have a score of at least `least` [ROWS, TILE or 1] in some head."""
    return tl.max((scores >= least).to(tl.int32), axis=0) == 1


@triton.jit
def turn_queries(
    q, inverses, means, rounded, steps, of_means, turned, losses, lost_means,
    scale, heads, q_token, q_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    PART: tl.constexpr, STEPS: tl.constexpr, FITTED: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Store queries for bases: `rounded` int8 [N, G, 2, ROWS, DIM / 2] in `steps`. Grid: N * G.

    `of_means` are their products with the mean key. BOUNDED: `turned` [N, G, ROWS, DIM] are not
    rounded, and what rounding loses is at most `losses` times a key's scale and `lost_means` times
    its multiple of the mean key. All others are [N, G, ROWS].
    """
    at = tl.program_id(0)
    r, d, half = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, DIM // 2)
    queries = queries_of(q, at, heads, q_token, q_head, GROUP, ROWS, D, DIM).to(tl.float32) * scale
    if FITTED:
        of_head = at % heads * D + d
        queries *= tl.load(inverses + of_head, mask=d < D, other=0.0)[None, :]
        mean = tl.load(means + of_head, mask=d < D, other=0.0)
    found = rotated(queries, ROWS, DIM, PART, STEPS)
    step = tl.max(tl.abs(found), axis=1) / 127
    code = tl.floor(found / tl.where(step > 0, step, 1.0)[:, None] + 0.5)
    code = tl.minimum(tl.maximum(code, -127.0), 127.0)
    even, odd = tl.split(tl.reshape(code.to(tl.int8), [ROWS, DIM // 2, 2]))
    to = (at * 2 * ROWS + r[:, None]) * (DIM // 2) + half[None, :]
    tl.store(rounded + to, even)
    tl.store(rounded + to + ROWS * (DIM // 2), odd)
    tl.store(steps + at * ROWS + r, step)
    if FITTED:
        tl.store(of_means + at * ROWS + r, step * tl.sum(code * mean[None, :], axis=1))
    if BOUNDED:
        lost = found - step[:, None] * code
        tl.store(turned + (at * ROWS + r[:, None]) * DIM + d[None, :], found)
        size = tl.sum(tl.abs(lost), axis=1)
        tl.store(losses + at * ROWS + r, size * _GREATEST * _SLACK)
        if FITTED:
            of_mean = tl.abs(tl.sum(lost * mean[None, :], axis=1))
            tl.store(lost_means + at * ROWS + r, of_mean * _SLACK)


@triton.jit
def estimate_units(
    rounded, steps, of_means, key_codes, key_scales, key_shares, owner, first, length,
    scores, masses, tops,
    heads, room, block_room,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    HALF: tl.constexpr, UNIT: tl.constexpr, TILE: tl.constexpr, FITTED: tl.constexpr,
):  # fmt: skip
    """Store scores by bases [N, G, GROUP, room], -inf of rows that are not seen.

    And log2 of blocks' masses and the largest scores [N, G, GROUP, blocks]. Units that a token does
    not have stay as they are. Grid: units, N * G.
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    begin, end, _, used = seen_by(at, heads, first, first, length, UNIT, False)
    if unit < used:
        held = (tl.load(owner + at // heads) * heads + at % heads).to(tl.int64) * room
        r, half = tl.arange(0, ROWS), tl.arange(0, HALF)
        own, mine = r < GROUP, half < D // 2
        place = rounded + (at * 2 * ROWS + r[:, None]) * (DIM // 2) + half[None, :]
        mask = own[:, None] & mine[None, :]
        even = tl.load(place, mask=mask, other=0).to(tl.float32).to(tl.bfloat16)
        odd = tl.load(place + ROWS * (DIM // 2), mask=mask, other=0).to(tl.float32).to(tl.bfloat16)
        step = tl.load(steps + at * ROWS + r)
        of_mean = tl.load(of_means + at * ROWS + r) if FITTED else step
        for tile in range(tiles_of(unit, used, 0, end, UNIT, TILE, False)):
            rows, seen = rows_of_unit(unit, tile, first, 0, begin, end, UNIT, TILE, False, False)
            packed = tl.load(
                key_codes + (held + rows[:, None]) * (D // 2) + half[None, :],
                mask=seen[:, None] & mine[None, :], other=0,
            ).to(tl.int32)  # fmt: skip
            found = product(even, tl.trans(level_of(packed & 15).to(tl.bfloat16)))
            found += product(odd, tl.trans(level_of(packed >> 4).to(tl.bfloat16)))
            size = tl.load(key_scales + held + rows, mask=seen, other=0).to(tl.float32)
            found *= step[:, None] * size[None, :]
            if FITTED:
                share = tl.load(key_shares + held + rows, mask=seen, other=0).to(tl.float32)
                found += of_mean[:, None] * share[None, :]
            found = tl.where(seen[None, :], found, float("-inf"))
            to = _at(at, rows, room, GROUP, ROWS)
            tl.store(scores + to, found, mask=own[:, None] & (rows < room)[None, :])
            parts = tl.reshape(found, [ROWS, TILE // 16, 16])
            most = tl.max(parts, axis=2)
            base = tl.where(most == float("-inf"), 0.0, most)
            sums = tl.sum(tl.exp2(parts - base[:, :, None]), axis=2)
            mass = tl.where(sums > 0, base + tl.log2(tl.where(sums > 0, sums, 1.0)), most)
            block = _blocks_of(rows, TILE)
            to = _at(at, block, block_room, GROUP, ROWS)
            in_room = own[:, None] & (block < block_room)[None, :]
            tl.store(masses + to, mass, mask=in_room)
            tl.store(tops + to, most, mask=in_room)


@triton.jit
def bound_units(
    key_scales, key_shares, key_errors, value_errors, query_lengths, losses, lost_means,
    owner, first, length, scores, peaks, floors,
    used_weights, more, less, lost,
    heads, room, block_room,
    GROUP: tl.constexpr, ROWS: tl.constexpr, UNIT: tl.constexpr, TILE: tl.constexpr,
    FITTED: tl.constexpr,
):  # fmt: skip
    """Store what blocks weigh and lack if they are light [N, G, GROUP, blocks]. Grid: as estimates.

    In units of 2^peak: the weights that are used, by how much the true ones may be `more` or
    `less`, and what bases of values may have `lost`. `query_lengths`, `losses` and `lost_means` [N,
    G, ROWS] bound the errors of scores.
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    begin, end, _, used = seen_by(at, heads, first, first, length, UNIT, False)
    if unit < used:
        held = (tl.load(owner + at // heads) * heads + at % heads).to(tl.int64) * room
        r = tl.arange(0, ROWS)
        own = r < GROUP
        peak = tl.load(peaks + at * GROUP + r, mask=own, other=0.0)
        floor = tl.load(floors + at * GROUP + r, mask=own, other=float("inf"))
        of_length = tl.load(query_lengths + at * ROWS + r)
        of_scale = tl.load(losses + at * ROWS + r)
        of_share = tl.load(lost_means + at * ROWS + r) if FITTED else of_scale
        for tile in range(tiles_of(unit, used, 0, end, UNIT, TILE, False)):
            rows, seen = rows_of_unit(unit, tile, first, 0, begin, end, UNIT, TILE, False, False)
            size = tl.abs(tl.load(key_scales + held + rows, mask=seen, other=0).to(tl.float32))
            error = length_of(tl.load(key_errors + held + rows, mask=seen, other=0)) * size
            error = of_length[:, None] * error[None, :] + of_scale[:, None] * size[None, :]
            if FITTED:
                share = tl.load(key_shares + held + rows, mask=seen, other=0).to(tl.float32)
                error += of_share[:, None] * tl.abs(share)[None, :]
            error = tl.minimum(error, _MOST_ERROR)
            place = scores + _at(at, rows, room, GROUP, ROWS)
            x = tl.load(place, mask=own[:, None] & seen[None, :], other=float("-inf"))
            counts = _counting(x, floor[:, None])
            x -= peak[:, None]
            weight = tl.where(counts[None, :], tl.exp2(x), 0.0)
            above = tl.exp2(x + error) - weight
            below = weight - tl.where(counts[None, :], tl.exp2(x - error), 0.0)
            moved = length_of(tl.load(value_errors + held + rows, mask=seen, other=0))
            of_value = weight * (moved / _ERROR_UNIT)[None, :]
            block = _blocks_of(rows, TILE)
            to = _at(at, block, block_room, GROUP, ROWS)
            mask = own[:, None] & (block < block_room)[None, :]
            tl.store(used_weights + to, _by_block(weight, ROWS, TILE), mask=mask)
            tl.store(more + to, _by_block(above, ROWS, TILE), mask=mask)
            tl.store(less + to, _by_block(below, ROWS, TILE), mask=mask)
            tl.store(lost + to, _by_block(of_value, ROWS, TILE), mask=mask)


@triton.jit
def score_heavy(
    q, k, table, blocks, counts, owner, first, length, scores, peaks, floors, exact, reads,
    scale, heads, room, block_room,
    q_token, q_head, stride_owner, stride_page, stride_row, stride_head, table_owner, list_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Put exact scores in the place of those of listed blocks. Grid: units of lists, N * G.

    BOUNDED: of all rows, whose weights [N, G, GROUP, blocks] are `exact` in units of 2^peak. Else
    of rows that reach a floor, and -inf of others; blocks without any are not read. `reads` [N, G]
    grows by the keys.
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    mine = tl.load(owner + at // heads)
    begin, end, count, used = seen_by(at, heads, counts, first, length, UNIT, True)
    if unit < used:
        r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
        own, read = r < GROUP, 0
        queries = queries_of(q, at, heads, q_token, q_head, GROUP, ROWS, D, DIM)
        floor = tl.load(floors + at * GROUP + r, mask=own, other=float("inf"))
        peak = tl.load(peaks + at * GROUP + r, mask=own, other=0.0)
        for tile in range(tiles_of(unit, used, count, end, UNIT, TILE, True)):
            rows, seen = rows_of_unit(
                unit, tile, blocks + at * list_head, count, begin, end, UNIT, TILE, True, False
            )
            there = own[:, None] & seen[None, :]
            to = scores + _at(at, rows, room, GROUP, ROWS)
            wanted, kept = seen, seen
            if not BOUNDED:
                kept = _counting(tl.load(to, mask=there, other=float("-inf")), floor[:, None])
                any_ = tl.max(tl.reshape(kept.to(tl.int32), [TILE // 16, 16]), axis=1)
                any_ = tl.broadcast_to(any_[:, None], [TILE // 16, 16])
                wanted = seen & (tl.reshape(any_, [TILE]) == 1)
            where = start_of(mine, at % heads, stride_owner, stride_head) + offsets_of(
                rows, wanted, table + mine * table_owner, stride_page, stride_row, PAGE
            )
            found = scores_of(queries, k, where, wanted, scale, d, D)
            tl.store(to, tl.where(kept[None, :], found, float("-inf")), mask=there)
            read += tl.sum(wanted.to(tl.int32), axis=0)
            if BOUNDED:
                any_ = tl.max(tl.reshape(seen.to(tl.int32), [TILE // 16, 16]), axis=1) == 1
                weight = _by_block(tl.exp2(found - peak[:, None]), ROWS, TILE)
                to = exact + _at(at, _blocks_of(rows, TILE), block_room, GROUP, ROWS)
                tl.store(to, weight, mask=own[:, None] & any_[None, :])
        tl.atomic_add(reads + at, read, sem="relaxed")


@triton.jit
def _of_rows(weights, heavy, v, where, D: tl.constexpr, DIM: tl.constexpr):
    """Return the weighted sums of `heavy` rows' values, [ROWS, DIM]."""
    d = tl.arange(0, DIM)
    place = v + where[:, None] + d[None, :]
    values = tl.load(place, mask=heavy[:, None] & (d < D)[None, :], other=0)
    return product(tl.where(heavy[None, :], weights, 0.0).to(values.dtype), values)


@triton.jit
def _of_bases(
    weights, light, codes, scales, at, TYPE: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr
):
    """Return the weighted sums of `light` rows' values by their bases, even and odd elements."""
    half = tl.arange(0, DIM // 2)
    place = codes + at[:, None] * (D // 2) + half[None, :]
    mask = light[:, None] & (half < D // 2)[None, :]
    packed = tl.load(place, mask=mask, other=0).to(tl.int32)
    weights *= tl.load(scales + at, mask=light, other=0.0)[None, :]
    weights = tl.where(light[None, :], weights, 0.0).to(TYPE)
    even = product(weights, level_of(packed & 15).to(TYPE))
    return even, product(weights, level_of(packed >> 4).to(TYPE))


@triton.jit
def sum_tiers(
    v, table, value_codes, value_scales, heavy_blocks, owner, first, length, scores, floors,
    peaks, totals, sums, reads, light_reads,
    heads, units, room, block_room,
    stride_owner, stride_page, stride_row, stride_head, table_owner,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    PART: tl.constexpr, STEPS: tl.constexpr, UNIT: tl.constexpr, TILE: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """Store each unit's sums, as `sum_units` does. Grid: units, N * G.

    Values of rows in `heavy_blocks` int8 [N, G, blocks] are exact, of others their bases. `reads`
    and `light_reads` [N, G] grow by their numbers.
    """
    unit, at = tl.program_id(0), tl.program_id(1)
    mine = tl.load(owner + at // heads)
    begin, end, _, used = seen_by(at, heads, first, first, length, UNIT, False)
    if unit < used:
        r, pages = tl.arange(0, ROWS), table + mine * table_owner
        own, held = r < GROUP, (mine * heads + at % heads).to(tl.int64) * room
        floor = tl.load(floors + at * GROUP + r, mask=own, other=float("inf"))
        start = start_of(mine, at % heads, stride_owner, stride_head)
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total, exact = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32)
        even = tl.zeros([ROWS, DIM // 2], tl.float32)
        odd, heavy_rows, light_rows = even, 0, 0
        for tile in range(tiles_of(unit, used, 0, end, UNIT, TILE, False)):
            rows, seen = rows_of_unit(unit, tile, first, 0, begin, end, UNIT, TILE, False, False)
            place = scores + _at(at, rows, room, GROUP, ROWS)
            x = tl.load(place, mask=own[:, None] & seen[None, :], other=float("-inf"))
            heavy = tl.load(heavy_blocks + at * block_room + rows // 16, mask=seen, other=0) != 0
            counts = _counting(x, tl.where(heavy[None, :], _EVERY, floor[:, None]))
            x = tl.where(counts[None, :], x, float("-inf"))
            grown = tl.maximum(peak, tl.max(x, axis=1))
            base = tl.where(grown == float("-inf"), 0.0, grown)
            weights, fall = tl.exp2(x - base[:, None]), tl.exp2(peak - base)
            peak, total = grown, total * fall + tl.sum(weights, axis=1)
            exact, even, odd = exact * fall[:, None], even * fall[:, None], odd * fall[:, None]
            light = tl.where(heavy, 0, counts.to(tl.int32)) == 1
            heavy = counts & heavy
            many, few = tl.sum(heavy.to(tl.int32), axis=0), tl.sum(light.to(tl.int32), axis=0)
            if many > 0:
                where = start + offsets_of(rows, heavy, pages, stride_page, stride_row, PAGE)
                exact += _of_rows(weights, heavy, v, where, D, DIM)
            if few > 0:
                more_even, more_odd = _of_bases(
                    weights, light, value_codes, value_scales, held + rows,
                    v.dtype.element_ty, D, DIM,
                )  # fmt: skip
                even += more_even
                odd += more_odd
            heavy_rows += many
            light_rows += few
        if light_rows > 0:
            by_bases = tl.reshape(tl.join(even, odd), [ROWS, DIM])
            exact += rotated(by_bases, ROWS, DIM, PART, STEPS)
        store_sums(peaks, totals, sums, at * units + unit, peak, total, exact, GROUP, ROWS, DIM)
        tl.atomic_add(reads + at, heavy_rows, sem="relaxed")
        tl.atomic_add(light_reads + at, light_rows, sem="relaxed")
