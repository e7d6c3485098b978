"""Rows in 4 bits an element: `kmeans4`, as `suffice.attention.planes` has it, next to exact rows.

A row is rotated, its elements are the nearest of 16 levels times a scale, and of a few scales,
which are tried side by side, the best is taken. Codes of two neighbouring elements share a byte. A
byte for each row says how much of it its base lacks. Keys may be rounded as
`suffice.decoder.key_rounding` has it, `fitted`.
"""

from __future__ import annotations

import itertools

import triton
import triton.language as tl

from suffice.attention.planes import (
    ERROR_UNIT,
    LEAST_LENGTH,
    LENGTH_SHIFT,
    LEVEL_UNIT,
    TRIED,
    UPPER,
)
from suffice.backends.triton.sums import offsets_of, start_of

_PAIRS = tuple(itertools.pairwise(UPPER))
_LEAST, _EVEN = tl.constexpr(UPPER[0]), tl.constexpr(UPPER[1] - UPPER[0])  # of the first steps
_BORDERS = tl.constexpr(tuple((low + high) / 2 for low, high in _PAIRS))
_STEPS = tl.constexpr(tuple(high - low for low, high in _PAIRS))
_TRIED, _UNIT = tl.constexpr(TRIED), tl.constexpr(LEVEL_UNIT)
_ERROR_UNIT = tl.constexpr(float(ERROR_UNIT))
_LEAST_BITS = tl.constexpr(int(LEAST_LENGTH.view("int32")))
_SHIFT, _BELOW = tl.constexpr(LENGTH_SHIFT), tl.constexpr((1 << LENGTH_SHIFT) - 1)
_ROUNDED_UP = tl.constexpr(1.0001)


@triton.jit
def rotated(x, ROWS: tl.constexpr, DIM: tl.constexpr, PART: tl.constexpr, STEPS: tl.constexpr):
    """Return rows [ROWS, DIM], each PART = 2^STEPS elements multiplied by a Hadamard matrix.

    A step adds and subtracts neighbours, and turns the bits of their places round by one.
    """
    many: tl.constexpr = ROWS * DIM // PART
    x = tl.reshape(x, [many, PART])
    for _ in tl.static_range(STEPS):
        a, b = tl.split(tl.reshape(x, [many, PART // 2, 2]))
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 2, 1]), [many, PART])
    return tl.reshape(x, [ROWS, DIM]) * (PART**-0.5)


@triton.jit
def level_of(code):
    """Return the levels of codes, float32."""
    place = tl.where(code < 8, 7 - code, code - 8)
    level = 3 + 6 * place + ((2 << tl.maximum(place - 4, 0)) - 2)
    return tl.where(code < 8, -level, level).to(tl.float32)


@triton.jit
def length_of(code):
    """Return the lengths that bytes stand for."""
    return ((code.to(tl.int32) << _SHIFT) + _LEAST_BITS).to(tl.float32, bitcast=True)


@triton.jit
def _length_code(length):
    """Return the least bytes whose lengths are not below these."""
    above = (length * _ROUNDED_UP).to(tl.int32, bitcast=True) - _LEAST_BITS
    code = (above + _BELOW) >> _SHIFT
    return tl.minimum(tl.maximum(code, 0), 255).to(tl.uint8)


@triton.jit
def _to_bf16(x):
    """Return float32 rounded to bfloat16: a cast alone cuts digits off in the interpreter."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _nearest(x):
    """Return the levels nearest to x."""
    size = tl.abs(x)
    level = _LEAST + _EVEN * tl.minimum(tl.maximum(tl.ceil(size / _EVEN) - 1, 0), 4)
    for i in tl.static_range(4, 7):
        level += tl.where(size > _BORDERS[i], _STEPS[i], 0)
    return tl.where(x < 0, -level, level)


@triton.jit
def _store_codes(codes, to, levels, there, RUN: tl.constexpr, D: tl.constexpr, DIM: tl.constexpr):
    """Store the codes of levels [RUN, DIM] at rows `to` [RUN]."""
    size = tl.abs(levels).to(tl.int32)
    place = tl.minimum((size - _LEAST) // _EVEN, 4)
    for i in tl.static_range(4, 7):
        place += tl.where(size > _BORDERS[i], 1, 0)
    code = tl.where(levels < 0, 7 - place, 8 + place)
    low, high = tl.split(tl.reshape(code, [RUN, DIM // 2, 2]))
    d = tl.arange(0, DIM // 2)
    mask = there[:, None] & (d < D // 2)[None, :]
    tl.store(
        codes + to[:, None] * (D // 2) + d[None, :], (low | (high << 4)).to(tl.uint8), mask=mask
    )


@triton.jit
def _inverse(x):
    return tl.where(x != 0, 1 / tl.where(x != 0, x, 1.0), 0.0)


@triton.jit
def _inverses(squares, D: tl.constexpr):
    """Return the inverses of the scales that are tried for rows of these sums of squares [M, 8]."""
    i = tl.arange(0, 8)
    factor = tl.where(i == 0, _TRIED[0], 0.0)
    for j in tl.static_range(1, 8):
        factor = tl.where(i == j, _TRIED[j], factor)
    return _inverse(tl.sqrt(squares / D) / _UNIT)[:, None] / factor[None, :]


@triton.jit
def _best(products, squares):
    """Return each row's best scale, and which of the 8 levels' it is [M, 8].

    `products` of a row with the levels, and the levels' `squares`, [M, 8].
    """
    best = tl.argmax(products * products * _inverse(squares), axis=1)
    chosen = tl.arange(0, 8)[None, :] == best[:, None]
    return tl.sum(tl.where(chosen, products * _inverse(squares), 0.0), axis=1), chosen


@triton.jit
def _rows_of(
    x, table, begin, end, heads, room, stride_owner, stride_page, stride_row, stride_head,
    table_owner, D: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Return RUN rows [RUN, DIM] from `begin` on, which are before `end`, and where bases lie."""
    at, d = tl.program_id(1), tl.arange(0, DIM)
    owner, head = at // heads, at % heads
    row = begin + tl.arange(0, RUN)
    there = row < end
    where = start_of(owner, head, stride_owner, stride_head)
    where += offsets_of(row, there, table + owner * table_owner, stride_page, stride_row, PAGE)
    mask = there[:, None] & (d < D)[None, :]
    found = tl.load(x + where[:, None] + d[None, :], mask=mask, other=0).to(tl.float32)
    return found, there, at.to(tl.int64) * room + row


@triton.jit
def encode(
    x, table, codes, scales, errors, made, lengths, heads, room,
    stride_owner, stride_page, stride_row, stride_head, table_owner,
    D: tl.constexpr, DIM: tl.constexpr, PART: tl.constexpr, STEPS: tl.constexpr,
    PAGE: tl.constexpr, RUN: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Store the bases of rows [made, lengths) of each request [B]. Grid: runs of RUN rows, B * G.

    `codes` uint8 [B, G, room, D / 2], `scales` and `errors` uint8 [B, G, room]: of KEYS the length
    of what a base lacks, in units of the scale; of values over the row's own.
    """
    begin = tl.load(made + tl.program_id(1) // heads) + tl.program_id(0) * RUN
    end = tl.load(lengths + tl.program_id(1) // heads)
    if begin < end:
        rows, there, to = _rows_of(
            x, table, begin, end, heads, room, stride_owner, stride_page, stride_row, stride_head,
            table_owner, D, DIM, PAGE, RUN,
        )  # fmt: skip
        turned = rotated(rows, RUN, DIM, PART, STEPS)
        whole = tl.sum(turned * turned, axis=1)
        held = (tl.arange(0, DIM) < D)[None, :]
        levels = _nearest(turned[:, None, :] * _inverses(whole, D)[:, :, None])
        levels = tl.where(held[None], levels, 0.0)
        products = tl.sum(turned[:, None, :] * levels, axis=2)
        scale, chosen = _best(products, tl.sum(levels * levels, axis=2))
        levels = tl.sum(tl.where(chosen[:, :, None], levels, 0.0), axis=1)
        if KEYS:
            scale = _to_bf16(scale)
        left = tl.where(held, turned * _inverse(scale)[:, None] - levels, 0.0)
        lost = tl.sum(left * left, axis=1)
        length = tl.sqrt(lost)
        if not KEYS:
            length = _ERROR_UNIT * tl.sqrt(lost * scale * scale * _inverse(whole))
        _store_codes(codes, to, levels, there, RUN, D, DIM)
        tl.store(scales + to, scale, mask=there)
        tl.store(errors + to, _length_code(length), mask=there)


@triton.jit
def encode_fitted(
    x, table, codes, scales, shares, errors, made, lengths, channels, means, passed, weights,
    heads, room, stride_owner, stride_page, stride_row, stride_head, table_owner,
    D: tl.constexpr, DIM: tl.constexpr, PART: tl.constexpr, STEPS: tl.constexpr,
    PAGE: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Store the bases of keys as `encode` does, by a rounding: see `Rounding` for its parts.

    `shares` [B, G, room]: the multiple of the mean key that is subtracted from a key first. Levels
    are found element after element, as each corrects the errors of those before it.
    """
    begin = tl.load(made + tl.program_id(1) // heads) + tl.program_id(0) * RUN
    end = tl.load(lengths + tl.program_id(1) // heads)
    if begin < end:
        rows, there, to = _rows_of(
            x, table, begin, end, heads, room, stride_owner, stride_page, stride_row, stride_head,
            table_owner, D, DIM, PAGE, RUN,
        )  # fmt: skip
        d, of_head = tl.arange(0, DIM), tl.program_id(1) % heads * D
        held = d < D
        rows = rows * tl.load(channels + of_head + d, mask=held, other=0.0)[None, :]
        turned = rotated(rows, RUN, DIM, PART, STEPS)
        mean = tl.load(means + of_head + d, mask=held, other=0.0)
        share = tl.sum(turned * mean[None, :], axis=1) * _inverse(tl.sum(mean * mean, axis=0))
        share = _to_bf16(share)
        turned -= share[:, None] * mean[None, :]
        inverse = _inverses(tl.sum(turned * turned, axis=1), D)
        levels = tl.zeros([RUN, 8, DIM], tl.float32)
        passed_on = tl.zeros([RUN, 8, DIM], tl.float32)  # in units of levels
        products, squares = tl.zeros([RUN, 8], tl.float32), tl.zeros([RUN, 8], tl.float32)
        aims = turned
        for i in range(D):
            here = d == i
            own = tl.sum(tl.where(here[None, :], turned, 0.0), axis=1)
            aim = tl.sum(tl.where(here[None, :], aims, 0.0), axis=1)[:, None]
            before = tl.sum(tl.where(here[None, None, :], passed_on, 0.0), axis=2)
            level = _nearest(aim * inverse - before)
            weight = tl.load(weights + of_head + i)
            products += weight * aim * (level + before)
            squares += weight * (level + before) * (level + before)
            by = tl.load(passed + (of_head + i) * D + d, mask=held, other=0.0)
            passed_on += level[:, :, None] * by[None, None, :]
            aims += own[:, None] * by[None, :]
            levels = tl.where(here[None, None, :], level[:, :, None], levels)
        scale, chosen = _best(products, squares)
        scale = _to_bf16(scale)
        passed_on = tl.sum(tl.where(chosen[:, :, None], levels + passed_on, 0.0), axis=1)
        levels = tl.sum(tl.where(chosen[:, :, None], levels, 0.0), axis=1)
        left = aims * _inverse(scale)[:, None] - passed_on
        weight = tl.load(weights + of_head + d, mask=held, other=0.0)
        lost = tl.sum(weight[None, :] * left * left, axis=1)
        _store_codes(codes, to, levels, there, RUN, D, DIM)
        tl.store(scales + to, scale, mask=there)
        tl.store(shares + to, share, mask=there)
        tl.store(errors + to, _length_code(tl.sqrt(lost)), mask=there)
