"""A request of random keys, values and queries, decoded token by token on a cache of one layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from caches import empty_cache, held
from suffice.attention.exact import Exact
from suffice.backends.cpu.attention import attend
from suffice.cache.kv import KVCache

SCALE = 0.3
SIZE = 32


class Rows:
    """`rows` tokens with q [H, rows, D], k and v [G, rows, D]."""

    def __init__(self, rows: int, groups: int = 2, rep: int = 2, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.q = torch.randn(groups * rep, rows, SIZE, generator=generator).numpy()
        self.k = torch.randn(groups, rows, SIZE, generator=generator).numpy()
        self.v = torch.randn(groups, rows, SIZE, generator=generator).numpy()
        self.group = rep

    def cache(self, policy: Any, dtype: str = "float32", window: int | None = None) -> KVCache:
        kept = dict.fromkeys(policy.keeps, True)
        cache = empty_cache(1, len(self.k), SIZE, dtype, growth="step:rows=64", limit=4096, **kept)
        policy.prepare(cache, [window])
        return cache

    def prompt(
        self, policy: Any, cache: KVCache, count: int, window: int | None = None, chunk: int = 50
    ) -> None:
        """Run the first `count` tokens as a prompt, in chunks."""
        watch = policy.watch(cache, [window], SCALE)
        cache.reserve(count)
        for first in range(0, count, chunk):
            rows = slice(first, min(first + chunk, count))
            cache.append(0, self.k[:, rows], self.v[:, rows])
            if watch is not None:
                watch.add(0, self.q[:, rows], rows.stop)
            cache.advance(rows.stop - first)
        policy.after_prompt(cache, [window], watch)

    def step(
        self, policy: Any, cache: KVCache, token: int, technique: Any = None, **options: Any
    ) -> tuple[np.ndarray, list[Any]]:
        """Decode a token; return its output [H, D] and what each key head read."""
        now = slice(token, token + 1)
        cache.reserve(1)
        cache.append_tentative(self.k[None, :, now], self.v[None, :, now], [-1])
        rule = (technique or Exact()).rule()
        out, reads = attend(rule, self.q[:, now], cache, 0, scale=SCALE, **options)
        cache.commit([0])
        policy.after_step(cache)
        return out[:, 0], reads

    def weights(self, token: int, head: int, seen: list[int]) -> np.ndarray:
        """The softmax [n] of a query head over the tokens that it sees, float64."""
        k = self.k[head // self.group, seen].astype(np.float64)
        scores = SCALE * k @ self.q[head, token].astype(np.float64)
        return softmax(scores)

    def output(self, token: int, seen: list[list[int]]) -> np.ndarray:
        """What a token's attention [H, D] to the tokens that each key head sees must be."""
        outputs = []
        for head in range(len(self.q)):
            own = seen[head // self.group]
            values = self.v[head // self.group, own].astype(np.float64)
            outputs.append(self.weights(token, head, own) @ values)
        return np.stack(outputs)


def softmax(scores: np.ndarray) -> np.ndarray:
    """The softmax of each row, [..., S]."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rows_of(cache: KVCache, keys: np.ndarray) -> list[list[int]]:
    """Which tokens' keys, of keys [G, S, D], each head of the cache's first layer holds."""
    found = []
    for own, all_keys in zip(held(cache)[0], keys, strict=True):
        equal = (own[:, None] == all_keys[None]).all(-1)
        assert (equal.sum(-1) == 1).all(), "a row that is no token's, or of two"
        found.append(equal.argmax(-1).tolist())
    return found


def sixteen_rows(kind: str, size: int) -> np.ndarray:
    """Return 16 rows [1, 16, D]."""
    rows = np.random.default_rng(size).standard_normal((1, 16, size), np.float32)
    if kind == "outliers":
        rows[..., :2] *= 50
    elif kind == "sizes":
        rows *= 10 ** np.linspace(-6, 6, 16, dtype=np.float32)[:, None]
    elif kind == "one":
        eye = np.eye(16, size, dtype=np.float32)[None]
        rows = eye - eye[..., ::-1] / 3
    return rows
