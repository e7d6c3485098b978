"""Attention of the last tokens of a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache

QUERIES = 32  # that are scored together, so that their scores stay in the core's cache
# NumPy's OpenBLAS computes a product of more multiplications than this on all cores. Its threads
# then spin for a while, on cores that the next step needs; the work here is too small to gain.
PRODUCT = 1 << 18


class Observed:
    """A `QueryObserver` that keeps the queries of the last `rows` tokens of each layer."""

    def __init__(self, rows: int, scale: float) -> None:
        self.rows = rows
        self.scale = scale
        self._queries: dict[int, np.ndarray] = {}

    def add(self, layer: int, q: np.ndarray, end: int) -> None:
        """Store queries [H, T, D]; see `QueryObserver`."""
        before = self._queries.get(layer, q[:, :0])
        self._queries[layer] = np.concatenate((before, q), axis=1)[:, -self.rows :].copy()

    def queries(self, layer: int) -> np.ndarray:
        """Return a layer's last queries [H, w, D]; w is smaller if the prompt was shorter."""
        return self._queries[layer]

    def scores(self, cache: KVCache, layer: int, kernel: int, pool: str) -> np.ndarray:
        """Return the pooled attention of the last queries, [G, S - w]; see `observed_scores`."""
        q, k = self.queries(layer), cache.keys(layer)
        return observed_scores(q, k, scale=self.scale, kernel=kernel, pool=pool)


def weight_sums(cache: KVCache, layer: int, q: np.ndarray, end: int, scale: float) -> np.ndarray:
    """Return the softmax weights of the first `end` tokens of a layer, float32 [G, end].

    They are summed over queries q [H, w, D], of the last w of these tokens, and over the heads that
    share keys. No row may have been evicted. As `attention_sums`, on all cores.
    """
    out = np.empty((cache.heads(layer), end), np.float32)
    cache.native.sum_weights(layer, end, np.ascontiguousarray(q, np.float32), scale, out)
    return out


def attention_sums(q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray:
    """Return the softmax weight of each token, summed over queries and heads, [G, S].

    The queries are those of the last w of S tokens: q [H, w, D], k [G, S, D]. Each sum is over the
    R = H / G heads that share keys; they are adjacent.
    """
    groups, rows, size = k.shape
    window = q.shape[1]
    grouped = (scale * q).reshape(groups, -1, window, size)
    sums = np.zeros((groups, rows), q.dtype)
    for first in range(0, window, QUERIES):
        queries = grouped[:, :, first : first + QUERIES]
        seen = rows - window + first + queries.shape[2]  # tokens that the last of them sees
        for group in range(groups):
            weights = _softmax(queries[group], k[group, :seen])
            sums[group, :seen] += weights.sum(axis=(0, 1))
    return sums


def _softmax(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the softmax [R, w, S] of the last w of S tokens: q [R, w, D], scaled, and k [S, D]."""
    heads, window, size = q.shape
    rows = len(k)
    scores = np.empty((heads, window, rows), q.dtype)
    tile = PRODUCT // (window * size)
    for first in range(0, rows, tile):
        part = slice(first, first + tile)
        np.matmul(q, k[part].T, out=scores[:, :, part])
    hidden = np.triu(np.ones((window, window), bool), 1)
    scores[:, :, rows - window :][:, hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def observed_scores(
    q: np.ndarray, k: np.ndarray, *, scale: float, kernel: int, pool: str
) -> np.ndarray:
    """Return the pooled attention of the last w tokens to each earlier token, [G, S - w].

    It is the mean softmax over the w tokens and the heads that share keys, then the maximum or mean
    (padded by 0) over `kernel` neighbours.
    """
    (groups, rows, _), (heads, window, _) = k.shape, q.shape
    means = attention_sums(q, k, scale)[:, : rows - window] / (window * (heads // groups))
    outside = -np.inf if pool == "max" else 0.0
    padded = np.pad(means, ((0, 0), (kernel // 2, kernel // 2)), constant_values=outside)
    near = [padded[:, first : first + means.shape[1]] for first in range(kernel)]
    scores: np.ndarray = np.max(near, axis=0) if pool == "max" else np.mean(near, axis=0)
    return scores
