"""The reference of `tiers:prompt=`: tiles of a prompt attend to their heaviest blocks of keys.

A tile is 32 tokens of a prompt. Every fourth token of it looks at all keys that it sees, in every
second of the query heads that share keys, in turn; the last one in all. With p such a softmax,
blocks of 16 rows are chosen, heaviest first by the sum of p over these tokens and heads, until

    mean over tokens and heads of the sum of p over the other blocks <= unread

All tokens of the tile then attend to the chosen blocks, exactly. The first block and those that
hold tokens of the tile are always chosen. A tile that sees at most 64 blocks reads all of them.

Blocks whose sums are within a quarter of a factor of 2 keep the order of their keys. What a tile
chooses depends on its own tokens alone, so results do not depend on how a prompt is cut, as long as
every part begins with a tile.

Source   ours; blocks by some of the queries as in Jiang et al. 2024, "MInference 1.0".
Native   csrc/attention/prompt_search.cpp
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from suffice.arrays import softmax
from suffice.attention.sketch import heaviest_first
from suffice.cache import BLOCK

TILE = 32  # tokens
LOOK_EVERY = 4  # tokens
WHOLE = 64  # blocks


@dataclass(frozen=True)
class TileRead:
    """A tile's output [H, T, D], and the blocks that each key/value head read, bool [G, blocks]."""

    output: np.ndarray
    blocks: np.ndarray


def looks(heads: int, tokens: int) -> np.ndarray:
    """Return which tokens of a tile look at all keys, in each head that shares them, [R, T]."""
    turn, within = np.divmod(np.arange(tokens), LOOK_EVERY)
    found: np.ndarray = np.tile(within == LOOK_EVERY - 1, (heads, 1))
    if heads > 1:
        found &= (turn + np.arange(heads)[:, None]) % 2 == 1
    found[:, -1] = True
    return found


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, unread: float) -> TileRead:
    """Attend with a tile's queries q [H, T, D] to k, v [G, S, D]; the last T rows are its own."""
    heads, tokens, _ = q.shape
    groups, length, _ = k.shape
    share = heads // groups
    sees = np.arange(length) <= np.arange(length - tokens, length)[:, None]
    blocks = np.ones((groups, -(-length // BLOCK)), bool)
    output = np.empty_like(q)
    for g in range(groups):
        own = slice(g * share, (g + 1) * share)
        scores = np.where(sees, scale * q[own].astype(np.float64) @ k[g].T, -np.inf)
        if blocks.shape[-1] > WHOLE:
            blocks[g] = _chosen(softmax(scores[looks(share, tokens)]), length - tokens, unread)
        rows = np.repeat(blocks[g], BLOCK)[:length]
        output[own] = softmax(np.where(rows, scores, -np.inf)) @ v[g]
    return TileRead(output, blocks)


def _chosen(weights: np.ndarray, before: int, unread: float) -> np.ndarray:
    """Return the blocks to read, for weights [looks, S] and the rows `before` the tile."""
    length = weights.shape[-1]
    padded = np.pad(weights, [(0, 0), (0, -length % BLOCK)])
    shares = padded.reshape(len(weights), -1, BLOCK).sum((0, 2))
    chosen = np.zeros(len(shares), bool)
    chosen[0] = True
    chosen[before // BLOCK :] = True
    for block in heaviest_first(shares.astype(np.float32)):
        if shares[~chosen].sum() <= unread * shares.sum():
            break
        chosen[block] = True
    return chosen
