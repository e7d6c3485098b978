"""What each policy keeps, computed once more: in numpy, row by row, from the definitions alone."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
SETTINGS = (  # that leave something out of a short prompt, or order it
    "snapkv:budget=60,window=8",
    "snapkv:rank_only=true",
    "pyramidkv:ratio=0.3,window=16",
    "streaming:budget=50",
    "streaming:rank_only=true",
    "h2o:budget=40",
    "h2o:rank_only=true",
    "quest:budget=64,dense_layers=0",
    "quest:rank_only=true",
)


def softmax(q: Array, k: Array, scale: float) -> Array:
    """Weights [w, S] of the last w of S tokens: q [w, D], k [S, D], causal, float64."""
    window, rows = len(q), len(k)
    weights = np.zeros((window, rows))
    for i in range(window):
        last = rows - window + i
        scores = scale * (k[: last + 1].astype(np.float64) @ q[i].astype(np.float64))
        scores = np.exp(scores - scores.max())
        weights[i, : last + 1] = scores / scores.sum()
    return weights


def heads_of(q: Array, k: Array) -> list[list[Array]]:
    """The query heads [T, D] that share each key head."""
    group = len(q) // len(k)
    return [list(q[g * group : (g + 1) * group]) for g in range(len(k))]


def top(scores: Array, count: int) -> list[int]:
    """The places of the greatest, older ones first where equal, ascending."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return sorted(order[:count])


def pooled(scores: Array, kernel: int, pool: str) -> Array:
    half, out = kernel // 2, np.empty_like(scores)
    for i in range(len(scores)):
        near = scores[max(0, i - half) : i + half + 1]
        out[i] = near.max() if pool == "max" else near.sum() / kernel
    return out


def snapkv(
    q: Array, k: Array, scale: float, budget: int, window: int, kernel: int, pool: str
) -> list[list[int]]:
    """Rows kept by each key head; q [H, T, D], k [G, T, D]."""
    rows = k.shape[1]
    if rows <= budget:
        return [list(range(rows)) for _ in k]
    kept = []
    for queries, keys in zip(heads_of(q, k), k, strict=True):
        total = sum(softmax(each[-window:], keys, scale).sum(0) for each in queries)
        scores = pooled(total[: rows - window] / (window * len(queries)), kernel, pool)
        kept.append(top(scores, budget - window) + list(range(rows - window, rows)))
    return kept


class HeavyHitters:
    """One key head under h2o: tokens by place, each with what it has weighed."""

    def __init__(self, budget: int) -> None:
        self.most, self.recent = budget // 2, budget - budget // 2
        self.heavy: list[int] = []
        self.last: list[int] = []
        self.mass: dict[int, float] = {}

    def start(self, masses: Array) -> None:
        """Take a prompt's tokens."""
        self.mass = dict(enumerate(masses.tolist()))
        rows = len(masses)
        if rows <= self.most + self.recent:
            self.heavy = list(range(rows))[: self.most]
            self.last = list(range(rows))[self.most :]
            return
        self.heavy = top(masses[: rows - self.recent], self.most)
        self.last = list(range(rows - self.recent, rows))

    def tokens(self) -> list[int]:
        return [*self.heavy, *self.last]

    def step(self, token: int, weights: dict[int, float]) -> None:
        """A token was decoded; it and those it saw weighed so much."""
        self.last.append(token)
        for seen, weight in weights.items():
            self.mass[seen] = self.mass.get(seen, 0.0) + weight
        if len(self.heavy) < self.most:
            self.heavy.append(self.last.pop(0))
        if len(self.last) > self.recent:
            leaving = self.last.pop(0)
            place = min(range(self.most), key=lambda i: (self.mass[self.heavy[i]], i))
            if self.mass[self.heavy[place]] < self.mass[leaving]:
                self.heavy[place] = leaving
