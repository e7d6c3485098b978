"""Which blocks `aet` always reads, and the softmax mass that they have had."""

from __future__ import annotations

import triton
import triton.language as tl

from suffice.cache import BLOCK

_BLOCK = tl.constexpr(BLOCK)


@triton.jit
def always_read(
    owner, length, ends, kept, masses, local_masses, blocks, counts, marks,
    heads, sinks, most, locals_, units,
    MOST: tl.constexpr, LOCALS: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Let a token of each request come, and list what it always reads. Grid: N * G.

    `ends` int32 [B, G, 3]: the first block not seen yet, the first local one, and how many are
    global. These are `kept` int32 [B, G, MOST], with `masses` float32; `local_masses` [B, G,
    LOCALS] has that of block b at b % LOCALS. `blocks` [N, G, LISTED] gets sinks, global and local
    blocks, `counts` [N, G] how many, and `marks` int8 [N, G, units] a 1 for each.
    """
    at = tl.program_id(0)
    rows = tl.load(length + at // heads)
    own = tl.load(owner + at // heads) * heads + at % heads
    ends, kept, masses = ends + own * 3, kept + own * MOST, masses + own * MOST
    local_masses += own * LOCALS
    seen, local, taken = tl.load(ends), tl.load(ends + 1), tl.load(ends + 2)
    stop = (rows + _BLOCK - 1) // _BLOCK
    local = tl.maximum(local, tl.minimum(sinks, stop))
    if seen == 0:  # of blocks without mass the newest become global
        local = tl.maximum(local, tl.maximum(rows - locals_, 0) // _BLOCK - most)
    slot = tl.arange(0, MOST)
    while (local < stop) & ((local + 1) * _BLOCK <= rows - locals_):
        mass = tl.load(local_masses + local % LOCALS)
        mass = tl.where(local < seen, mass, 0.0)
        if most > 0:
            to = taken
            if taken == most:  # in place of the lightest one, of equally light ones the oldest
                held = tl.load(masses + slot, mask=slot < taken, other=float("inf"))
                block = tl.load(kept + slot, mask=slot < taken, other=0)
                light = held == tl.min(held, axis=0)
                oldest = tl.min(tl.where(light, block, 1 << 30), axis=0)
                to = tl.min(tl.where(light & (block == oldest), slot, MOST), axis=0)
            tl.debug_barrier()
            tl.store(kept + to, local)
            tl.store(masses + to, mass)
            tl.debug_barrier()
            taken = tl.minimum(taken + 1, most)
        local += 1
    ring = tl.arange(0, LOCALS)
    block = local + (ring - local % LOCALS + LOCALS) % LOCALS  # the one at this place
    tl.store(local_masses + ring, 0.0, mask=(block >= tl.maximum(seen, local)) & (block < stop))
    seen = tl.maximum(seen, stop)
    tl.debug_barrier()  # all threads have loaded the ends
    tl.store(ends, seen)
    tl.store(ends + 1, local)
    tl.store(ends + 2, taken)
    place = tl.arange(0, LISTED)
    of_sinks = tl.minimum(sinks, seen)
    of_kept = (place >= of_sinks) & (place < of_sinks + taken)
    block = tl.load(kept + place - of_sinks, mask=of_kept, other=0)
    block = tl.where(of_kept, block, place)
    block = tl.where(place >= of_sinks + taken, local + place - of_sinks - taken, block)
    count = of_sinks + taken + seen - local
    there = place < count
    tl.store(blocks + at * LISTED + place, tl.where(there, block, 0))
    tl.store(counts + at, count)
    ones = tl.full([LISTED], 1, tl.int8)
    tl.store(marks + at * units + block, ones, mask=there)


@triton.jit
def learn_masses(
    owner, ends, masses, local_masses, counts, peaks, totals, last_peaks, last_totals,
    heads, sinks, units,
    GROUP: tl.constexpr, ROWS: tl.constexpr, MOST: tl.constexpr, LOCALS: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """Add the masses that a token gave the blocks of its list. Grid: N * G.

    `peaks`, `totals` [N, G, units, GROUP] are of the blocks of the list, `last_*` [N, G, GROUP] of
    all that was read.
    """
    at = tl.program_id(0)
    own = tl.load(owner + at // heads) * heads + at % heads
    ends, masses, local_masses = ends + own * 3, masses + own * MOST, local_masses + own * LOCALS
    seen, local, taken = tl.load(ends), tl.load(ends + 1), tl.load(ends + 2)
    r, place = tl.arange(0, ROWS), tl.arange(0, LISTED)
    there = (place < tl.load(counts + at))[:, None] & (r < GROUP)[None, :]
    of = (at * units + place[:, None]) * GROUP + r[None, :]
    peak = tl.load(peaks + of, mask=there, other=float("-inf"))
    total = tl.load(totals + of, mask=there, other=0.0)
    last = tl.load(last_peaks + at * GROUP + r, mask=r < GROUP, other=0.0)
    every = tl.load(last_totals + at * GROUP + r, mask=r < GROUP, other=1.0)
    found = tl.sum(total * tl.exp2(peak - last[None, :]) / every[None, :], axis=1)
    of_sinks = tl.minimum(sinks, seen)
    kept = place - of_sinks
    mine = (kept >= 0) & (kept < taken)
    tl.store(masses + kept, tl.load(masses + kept, mask=mine, other=0.0) + found, mask=mine)
    block = local + kept - taken
    mine = (kept >= taken) & (block < seen)
    to = local_masses + block % LOCALS
    tl.store(to, tl.load(to, mask=mine, other=0.0) + found, mask=mine)
