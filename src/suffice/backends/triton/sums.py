"""What the kernels share: where rows lie, and the softmax sums of some rows.

Scores are in base 2: `scale` has the factor log2 e. A row is a key and a value of one key/value
head. ROWS query heads, at least 16 for the matrix units, share it; those beyond GROUP are padding.
"""

from __future__ import annotations

import triton
import triton.language as tl

# The interpreter multiplies the bits of bfloat16 numbers instead of the numbers.
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def product(a, b):
    """Return a @ b in float32."""
    if _INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def rows_of_unit(
    unit, tile, blocks, count, first, length,
    UNIT: tl.constexpr, TILE: tl.constexpr, LISTED: tl.constexpr, MARKED: tl.constexpr,
):  # fmt: skip
    """Return the rows of a tile of a unit, and which of them are there, seen and to be read.

    Units are UNIT rows in the order in which they are read. With LISTED they are blocks of 16 rows
    as the list `blocks` [count] has them. Else they come newest first; with MARKED, `blocks` says
    of each unit of the cache whether it is left out.
    """
    at = tile * TILE + tl.arange(0, TILE)
    if LISTED:
        place = unit * (UNIT // 16) + at // 16
        there = place < count
        rows = tl.load(blocks + place, mask=there, other=0) * 16 + at % 16
    else:
        own = (length - 1) // UNIT - unit
        rows = own * UNIT + at
        there = at >= 0
        if MARKED:
            there = tl.where(tl.load(blocks + own) == 0, there, at < 0)
    return rows, there & (rows >= first) & (rows < length)


@triton.jit
def tiles_of(
    unit, used, count, length, UNIT: tl.constexpr, TILE: tl.constexpr, LISTED: tl.constexpr
):  # fmt: skip
    """Return how many tiles of a unit begin before its last row; 0 of unit `used` and later."""
    left = length - ((length - 1) // UNIT - unit) * UNIT
    if LISTED:
        left = count * 16 - unit * UNIT
    return tl.where(unit < used, (tl.minimum(left, UNIT) + TILE - 1) // TILE, 0)


@triton.jit
def offsets_of(rows, seen, table, stride_page, stride_row, PAGE: tl.constexpr):
    """Return where rows lie, in elements from the first row of a request and key/value head.

    PAGE 0: one after another; else `table` has the page of each PAGE rows.
    """
    if PAGE == 0:
        return rows.to(tl.int64) * stride_row
    page = tl.load(table + rows // PAGE, mask=seen, other=0)
    return page.to(tl.int64) * stride_page + (rows % PAGE) * stride_row


@triton.jit
def scores_of(q, k, where, seen, scale, d, D: tl.constexpr):
    """Return scores [ROWS, TILE] of queries [ROWS, DIM] with keys; hidden ones are -inf."""
    place = k + where[:, None] + d[None, :]
    keys = tl.load(place, mask=seen[:, None] & (d < D)[None, :], other=0)
    found = product(q, tl.trans(keys)) * scale
    return tl.where(seen[None, :], found, float("-inf"))


@triton.jit
def added(peak, total, kept, sums, scores, values, wanted, FILTERS: tl.constexpr):
    """Return the sums with a tile's rows: their peak, weights and weighted values [TILE, DIM].

    Sums are in units of 2^peak [ROWS]. `kept` is the weight of the rows whose values are `wanted`,
    known only with FILTERS.
    """
    grown = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(grown == float("-inf"), 0.0, grown)
    weights = tl.exp2(scores - base[:, None])
    less = tl.exp2(peak - base)
    if FILTERS:
        kept = kept * less + tl.sum(tl.where(wanted[None, :], weights, 0.0), axis=1)
    products = product(weights.to(values.dtype), values)
    return grown, total * less + tl.sum(weights, axis=1), kept, sums * less[:, None] + products


@triton.jit
def joined(peak, total, sums, more_peak, more_total, more_sums):
    """Return the sums of two sets of rows."""
    grown = tl.maximum(peak, more_peak)
    base = tl.where(grown == float("-inf"), 0.0, grown)
    less, more = tl.exp2(peak - base), tl.exp2(more_peak - base)
    return grown, total * less + more_total * more, sums * less[:, None] + more_sums * more[:, None]


@triton.jit
def sums_of_unit(
    queries, k, v, table, blocks, count, first, length, unit, used, start, scale, least,
    stride_page, stride_row,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
    UNIT: tl.constexpr, TILE: tl.constexpr, PAGE: tl.constexpr, LISTED: tl.constexpr,
    MARKED: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """Return peaks, totals, kept weights [ROWS], sums [ROWS, DIM], keys and values of a unit.

    Of unit `used` and later ones there are no rows. With FILTERS, values of keys that every head
    scores below `least` [ROWS] are not read.
    """
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total, kept = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    keys, values = 0, 0
    for tile in range(tiles_of(unit, used, count, length, UNIT, TILE, LISTED)):
        rows, seen = rows_of_unit(
            unit, tile, blocks, count, first, length, UNIT, TILE, LISTED, MARKED
        )
        where = start + offsets_of(rows, seen, table, stride_page, stride_row, PAGE)
        scores = scores_of(queries, k, where, seen, scale, d, D)
        wanted = seen
        if FILTERS:
            heavy = (scores >= least[:, None]) & (r < GROUP)[:, None]
            wanted = seen & (tl.max(heavy.to(tl.int32), axis=0) == 1)
        place = v + where[:, None] + d[None, :]
        read = tl.load(place, mask=wanted[:, None] & (d < D)[None, :], other=0)
        peak, total, kept, sums = added(peak, total, kept, sums, scores, read, wanted, FILTERS)
        keys += tl.sum(seen.to(tl.int32), axis=0)
        values += tl.sum(wanted.to(tl.int32), axis=0)
    return peak, total, kept, sums, keys, values


@triton.jit
def queries_of(
    q, at, heads, q_token, q_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Return the queries [ROWS, DIM] of a pair of a token and a key/value head."""
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    place = q + at // heads * q_token + (at % heads * GROUP + r[:, None]) * q_head + d[None, :]
    return tl.load(place, mask=(r < GROUP)[:, None] & (d < D)[None, :], other=0)


@triton.jit
def start_of(owner, head, stride_owner, stride_head):
    """Return where a request's rows of a key/value head begin."""
    return owner.to(tl.int64) * stride_owner + head.to(tl.int64) * stride_head


@triton.jit
def seen_by(
    at, heads, counts, first, length, UNIT: tl.constexpr, LISTED: tl.constexpr
):  # fmt: skip
    """Return the rows [begin, end) that a token sees, its blocks in a list, and its units."""
    begin, end = tl.load(first + at // heads), tl.load(length + at // heads)
    count = 0
    used = (end + UNIT - 1) // UNIT - begin // UNIT
    if LISTED:
        count = tl.load(counts + at)
        used = (count * 16 + UNIT - 1) // UNIT
    return begin, end, count, used


@triton.jit
def store_sums(
    peaks, totals, sums, place, peak, total, own,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Store sums at a place, past the first cache: others read them."""
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    to, there = place.to(tl.int64) * GROUP + r, r < GROUP
    tl.store(peaks + to, peak, mask=there, cache_modifier=".cg")
    tl.store(totals + to, total, mask=there, cache_modifier=".cg")
    wide = sums + to[:, None] * DIM + d[None, :]
    tl.store(wide, own, mask=there[:, None], cache_modifier=".cg")


@triton.jit
def load_sums(
    peaks, totals, sums, place, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr
):
    """Return the sums at a place; those of rows that pad the group are of no rows."""
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    at, there = place.to(tl.int64) * GROUP + r, r < GROUP
    peak = tl.load(peaks + at, mask=there, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(totals + at, mask=there, other=0.0, cache_modifier=".cg")
    wide = sums + at[:, None] * DIM + d[None, :]
    return peak, total, tl.load(wide, mask=there[:, None], other=0.0, cache_modifier=".cg")


@triton.jit
def store_output(
    out, total, sums, at, heads, out_token, out_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Divide the sums of a token and a key/value head by the total weight, and store them."""
    r, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    row = at % heads * GROUP + r[:, None]
    place = out + at // heads * out_token + row * out_head + d[None, :]
    found = (sums / tl.maximum(total, 1e-30)[:, None]).to(out.dtype.element_ty)
    tl.store(place, found, mask=(r < GROUP)[:, None] & (d < D)[None, :])
