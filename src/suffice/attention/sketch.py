"""A sketch of the keys: 4 bits per element, from which scores are estimated with a known error.

Each complete chunk of 64 keys has a scale and a lowest value per channel (bfloat16), and the
largest residual norm (key minus sketch) per block of 16 keys. This is the reference of
csrc/cache/sketch.cpp and csrc/kernels/sketch.inl. Scores are in base 2 if the queries are scaled
for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suffice.cache import BLOCK

CHUNK = 64  # keys of a sketch that share a scale per channel
LAG = 32  # most rows of a step; a key's sketch is used from this many tokens later on
SLACK, ROUNDING = 1 + 1e-5, 1e-4  # allowances for float32 rounding, as in the native code


@dataclass(frozen=True)
class Sketch:
    """The sketch of one chunk: 4-bit codes [64, D], scale and low [D], residual norms [64]."""

    codes: torch.Tensor
    scale: torch.Tensor
    low: torch.Tensor
    residual: torch.Tensor


def sketch(keys: torch.Tensor) -> Sketch:
    """Return the sketch of a chunk of keys [64, D]."""
    keys = keys.float()
    low = keys.amin(0).bfloat16().float()
    scale = ((keys.amax(0) - low) / 15).bfloat16().float()
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    codes = ((keys - low) * inverse).round().clamp(0, 15)
    return Sketch(codes, scale, low, (keys - (scale * codes + low)).norm(dim=-1) * SLACK)


def estimate(chunk: Sketch, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return estimated scores [R, 64] of queries [R, D], and the largest error per block [R, 4].

    The queries, times the scale of each channel, are rounded to 8 bits. After 7.5 times the sum of
    the rounding errors is added, a channel's remaining error is (code - 7.5) times its rounding
    error, at most 7.5 times.
    """
    folded = q * chunk.scale
    unit = folded.abs().amax(-1, keepdim=True) / 127
    rounded = torch.where(unit > 0, (folded / unit).round(), torch.zeros_like(folded))
    difference = folded - rounded * unit
    bias = (q * chunk.low).sum(-1) + 7.5 * difference.sum(-1)
    scores = (rounded @ chunk.codes.T) * unit + bias[:, None]
    widest = chunk.residual.reshape(-1, BLOCK).amax(-1)
    offset = 7.5 * difference.abs().sum(-1, keepdim=True)
    return scores, q.norm(dim=-1, keepdim=True) * widest * SLACK + offset + ROUNDING


def complete_chunks(first: int, length: int) -> tuple[int, int]:
    """Return the sketched chunks [begin, end) that a token with rows [first, length) uses.

    (0, 0) if there are none.
    """
    begin = -(-first // CHUNK)
    end = (length - LAG) // CHUNK if length >= LAG + CHUNK else 0
    return (begin, end) if begin < end else (0, 0)


def heaviest_first(shares: torch.Tensor) -> list[int]:
    """Return the blocks by descending share; nearly equal ones come in the order of keys."""
    found: list[int] = _in_buckets(shares).sort(descending=True, stable=True).indices.tolist()
    return found


def blocks_by_mass(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor) -> list[int]:
    """Return the blocks of complete chunks by descending mass, estimated from sketches of k [S, D].

    `q` [R, D]: queries that share the keys, times scale and log2 e; their shares are summed.
    `seen` bool [S]: the keys that they may see.
    """
    rows = seen.nonzero()[:, 0]
    begin, end = complete_chunks(int(rows[0]), int(rows[-1]) + 1)
    if begin == end:
        return []
    chunks = [k[c * CHUNK : (c + 1) * CHUNK] for c in range(begin, end)]
    scores = torch.cat([estimate(sketch(chunk), q.float())[0] for chunk in chunks], -1)
    masses = torch.exp2(scores - scores.amax(-1, keepdim=True))
    masses = masses.reshape(len(q), -1, BLOCK).sum(-1)
    shares = (masses / masses.sum(-1, keepdim=True)).sum(0)
    return [begin * CHUNK // BLOCK + block for block in heaviest_first(shares)]


def _in_buckets(shares: torch.Tensor) -> torch.Tensor:
    """Return ascending buckets of shares: four per power of two; all below 2^-28 share one."""
    exponent = shares.clamp(min=2.0**-28).log2().floor()
    return (exponent + (shares / torch.exp2(exponent) * 4).floor() / 4).clamp(min=-27)
