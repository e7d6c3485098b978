"""The sketch of the keys in 4 bits, and the scores and their errors that it gives.

As `suffice.attention.sketch`: a chunk of 64 keys has a scale and a lowest value per channel, and
the largest residual norm of each block of 16. Codes of a channel and of the one half a head further
share a byte. Queries times scales are rounded to bfloat16, for the matrix units; what that loses is
part of the error.
"""

from __future__ import annotations

import triton
import triton.language as tl

from suffice.backends.triton.sums import offsets_of, product, start_of

_CHUNK, _SLACK, _ROUNDING = tl.constexpr(64), tl.constexpr(1 + 1e-5), tl.constexpr(1e-4)


@triton.jit
def _rounded(x):
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _coded(keys):
    """Return codes [64, HALF], scales and lowest values [HALF], and squares of residuals [64]."""
    low = _rounded(tl.min(keys, axis=0))
    scale = _rounded((tl.max(keys, axis=0) - low) / 15)
    inverse = tl.where(scale > 0, 1 / tl.where(scale > 0, scale, 1.0), 0.0)
    codes = tl.floor((keys - low[None, :]) * inverse[None, :] + 0.5)
    codes = tl.minimum(tl.maximum(codes, 0.0), 15.0)
    left = keys - (scale[None, :] * codes + low[None, :])
    return codes.to(tl.uint8), scale, low, tl.sum(left * left, axis=1)


@triton.jit
def sketch_chunks(
    k, table, codes, scales, lows, residuals, made, lengths,
    heads, chunks,
    stride_owner, stride_page, stride_row, stride_head, table_owner,
    D: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Sketch the chunks of the first `lengths` rows but for `made`. Grid: the most of them, B * G.

    Into codes uint8 [B, G, chunks, 64, D / 2], scales and lows [B, G, chunks, D], residuals [B, G,
    chunks, 4].
    """
    at = tl.program_id(1)
    owner, head = at // heads, at % heads
    chunk = tl.load(made + owner) + tl.program_id(0)
    if chunk < tl.load(lengths + owner) // _CHUNK:
        row, d = tl.arange(0, _CHUNK), tl.arange(0, HALF)
        rows, there = chunk * _CHUNK + row, row >= 0
        where = start_of(owner, head, stride_owner, stride_head)
        where += offsets_of(rows, there, table + owner * table_owner, stride_page, stride_row, PAGE)
        mask = there[:, None] & (d < D // 2)[None, :]
        place = k + where[:, None] + d[None, :]
        first = tl.load(place, mask=mask, other=0).to(tl.float32)
        last = tl.load(place + D // 2, mask=mask, other=0).to(tl.float32)
        low_codes, scale, low, left = _coded(first)
        high_codes, last_scale, last_low, last_left = _coded(last)
        to = at.to(tl.int64) * chunks + chunk
        bytes_to = codes + (to * _CHUNK + row[:, None]) * (D // 2) + d[None, :]
        tl.store(bytes_to, low_codes | (high_codes << 4), mask=mask)
        own, half = d < D // 2, D // 2
        tl.store(scales + to * D + d, scale, mask=own)
        tl.store(scales + to * D + half + d, last_scale, mask=own)
        tl.store(lows + to * D + d, low, mask=own)
        tl.store(lows + to * D + half + d, last_low, mask=own)
        widest = tl.max(tl.reshape(tl.sqrt(left + last_left), [4, 16]), axis=1)
        tl.store(residuals + to * 4 + tl.arange(0, 4), widest * _SLACK)


@triton.jit
def estimate(
    q, codes, scales, lows, residuals, owner, begins, ends,
    masses, bounds,
    scale, heads, chunks, q_token, q_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    BOUNDED: tl.constexpr,
):  # fmt: skip
    """Store log2 of blocks' masses, and of the most that they can be, [N, G, GROUP, 4 chunks].

    Grid: chunks, N * G. Of chunks outside [begins, ends) both are -inf.
    """
    chunk, at = tl.program_id(0), tl.program_id(1)
    token, head = at // heads, at % heads
    there = (chunk >= tl.load(begins + token)) & (chunk < tl.load(ends + token))
    r, d, four = tl.arange(0, ROWS), tl.arange(0, HALF), tl.arange(0, 4)
    mass = tl.full([ROWS, 4], float("-inf"), tl.float32)
    bound = mass
    if there:
        held = (tl.load(owner + token) * heads + head).to(tl.int64) * chunks + chunk
        row = tl.arange(0, _CHUNK)
        own, half = d < D // 2, D // 2
        place = q + token * q_token + (head * GROUP + r[:, None]) * q_head + d[None, :]
        mask = (r < GROUP)[:, None] & own[None, :]
        packed = tl.load(
            codes + (held * _CHUNK + row[:, None]) * half + d[None, :],
            mask=own[None, :] & (row >= 0)[:, None], other=0,
        )  # fmt: skip
        scores = tl.zeros([ROWS, _CHUNK], tl.float32)
        bias, lost = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
        square = tl.zeros([ROWS], tl.float32)
        for side in tl.static_range(2):
            queries = tl.load(place + side * half, mask=mask, other=0).to(tl.float32) * scale
            of = held * D + side * half + d
            folded = queries * tl.load(scales + of, mask=own, other=0).to(tl.float32)[None, :]
            rounded = folded.to(tl.bfloat16)
            difference = folded - rounded.to(tl.float32)
            levels = ((packed >> (4 * side)) & 15).to(tl.float32).to(tl.bfloat16)
            scores += product(rounded, tl.trans(levels))
            low = tl.load(lows + of, mask=own, other=0).to(tl.float32)
            bias += tl.sum(queries * low[None, :] + 7.5 * difference, axis=1)
            lost += 7.5 * tl.sum(tl.abs(difference), axis=1)
            square += tl.sum(queries * queries, axis=1)
        parts = tl.reshape(scores + bias[:, None], [ROWS, 4, 16])
        most = tl.max(parts, axis=2)
        mass = most + tl.log2(tl.sum(tl.exp2(parts - most[:, :, None]), axis=2))
        widest = tl.load(residuals + held * 4 + four)
        error = tl.sqrt(square)[:, None] * widest[None, :] * _SLACK + lost[:, None] + _ROUNDING
        bound = mass + (error + _ROUNDING if BOUNDED else 0.0)
    to = (at.to(tl.int64) * GROUP + r[:, None]) * (4 * chunks) + 4 * chunk + four[None, :]
    tl.store(masses + to, mass, mask=(r < GROUP)[:, None])
    tl.store(bounds + to, bound, mask=(r < GROUP)[:, None])
