"""A sketch of the keys: 4 bits per element, from which scores are estimated with a known error.

Each complete chunk of 64 keys has a scale and a lowest value per channel (bfloat16), and the
largest residual norm (key minus sketch) per block of 16 keys. This is the reference of
csrc/cache/sketch.cpp and csrc/kernels/sketch.inl. Scores are in base 2 if the queries are scaled
for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.linalg import norm

from suffice.cache import BLOCK

CHUNK = 64  # keys of a sketch that share a scale per channel
LAG = 32  # most rows of a step; a key's sketch is used from this many tokens later on
SLACK, ROUNDING = 1 + 1e-5, 1e-4  # allowances for float32 rounding, as in the native code


@dataclass(frozen=True)
class Sketch:
    """The sketch of one chunk: 4-bit codes [64, D], scale and low [D], residual norms [64]."""

    codes: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    residual: np.ndarray


def sketch(keys: np.ndarray) -> Sketch:
    """Return the sketch of a chunk of keys [64, D]."""
    keys = keys.astype(np.float32)
    low = _bfloat16(keys.min(0))
    scale = _bfloat16((keys.max(0) - low) / 15)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.clip(np.rint((keys - low) * inverse), 0, 15)
    return Sketch(codes, scale, low, norm(keys - (scale * codes + low), axis=-1) * SLACK)


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """Return x rounded to bfloat16, as float32."""
    from ml_dtypes import bfloat16  # here alone: kernels for GPUs need none of it

    return x.astype(bfloat16).astype(np.float32)


def estimate(chunk: Sketch, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return estimated scores [R, 64] of queries [R, D], and the largest error per block [R, 4].

    The queries, times the scale of each channel, are rounded to 8 bits. After 7.5 times the sum of
    the rounding errors is added, a channel's remaining error is (code - 7.5) times its rounding
    error, at most 7.5 times.
    """
    folded = q * chunk.scale
    unit = np.abs(folded).max(-1, keepdims=True) / 127
    rounded = np.rint(np.divide(folded, unit, out=np.zeros_like(folded), where=unit > 0))
    difference = folded - rounded * unit
    bias = (q * chunk.low).sum(-1) + 7.5 * difference.sum(-1)
    scores = (rounded @ chunk.codes.T) * unit + bias[:, None]
    widest = chunk.residual.reshape(-1, BLOCK).max(-1)
    offset = 7.5 * np.abs(difference).sum(-1, keepdims=True)
    return scores, norm(q, axis=-1, keepdims=True) * widest * SLACK + offset + ROUNDING


def complete_chunks(first: int, length: int) -> tuple[int, int]:
    """Return the sketched chunks [begin, end) that a token with rows [first, length) uses.

    (0, 0) if there are none.
    """
    begin = -(-first // CHUNK)
    end = (length - LAG) // CHUNK if length >= LAG + CHUNK else 0
    return (begin, end) if begin < end else (0, 0)


def heaviest_first(shares: np.ndarray) -> list[int]:
    """Return the blocks by descending share; nearly equal ones come in the order of keys."""
    found: list[int] = np.argsort(-_in_buckets(shares), kind="stable").tolist()
    return found


def blocks_by_mass(q: np.ndarray, k: np.ndarray, seen: np.ndarray) -> list[int]:
    """Return the blocks of complete chunks by descending mass, estimated from sketches of k [S, D].

    `q` [R, D]: queries that share the keys, times scale and log2 e; their shares are summed.
    `seen` bool [S]: the keys that they may see.
    """
    rows = np.flatnonzero(seen)
    begin, end = complete_chunks(int(rows[0]), int(rows[-1]) + 1)
    if begin == end:
        return []
    chunks = [k[c * CHUNK : (c + 1) * CHUNK] for c in range(begin, end)]
    q = q.astype(np.float32)
    scores = np.concatenate([estimate(sketch(chunk), q)[0] for chunk in chunks], -1)
    masses = np.exp2(scores - scores.max(-1, keepdims=True))
    masses = masses.reshape(len(q), -1, BLOCK).sum(-1)
    shares = (masses / masses.sum(-1, keepdims=True)).sum(0)
    return [begin * CHUNK // BLOCK + block for block in heaviest_first(shares)]


def _in_buckets(shares: np.ndarray) -> np.ndarray:
    """Return ascending buckets of shares: four per power of two; all below 2^-28 share one."""
    _, above = np.frexp(np.maximum(shares, 2.0**-28))  # the exponent of the next power of two
    exponent = above - 1
    buckets: np.ndarray = np.maximum(exponent + np.floor(np.ldexp(shares, 2 - exponent)) / 4, -27)
    return buckets
