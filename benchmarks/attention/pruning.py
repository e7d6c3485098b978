"""SpAtten's cascade and Token-Picker, in NumPy: what Scrooge's Table I compares it with.

**Cascade** (token by token, layer by layer; R heads share keys):

    s_k <- s_k + sum over heads of the softmax weight of token k     importance, over all layers
    of S tokens, the ceil(share(l + 1) S) with the largest s go on from layer l to layer l + 1
    a head reads the values of the `values` share of its keys with the largest weights

What is pruned from a layer stays pruned for all later tokens.

Source   Wang et al., "SpAtten: Efficient Sparse Attention Architecture with Cascade Token and Head
         Pruning". share is 1 in the first 15 % of the layers, then falls evenly to `last`.
Differs  Importance starts with the first token that is given, not with the prompt. Heads are not
         pruned, and keys are not read in parts of their bits.

**TokenPicker**: keys are integers of 12 bits, read in chunks of 4 bits, the highest first. With c
chunks, the score of a key lies between s_min and s_max. A key is dropped as soon as

    e^s_max / (e^s_max + D) <= threshold,  D = sum of e^s_min of the keys before it

which bounds its softmax weight. Keys come in the order first, newest, ..., second.

Source   Park et al., "Token-Picker: Accelerating Attention in Text Generation with Minimized Memory
         Transfer via Probability Estimation".
Differs  Keys are read one after the other, not out of order. Heads that share keys read a chunk if
         one of them wants it; values are not rounded, but count as 12 bits, as keys do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

UNPRUNED = 0.15  # of the layers, from the first on
BITS, CHUNK = 12, 4  # of a key


@dataclass(frozen=True)
class Read:
    """One layer's output [H, D], and the shares that were read of its keys and values, [G, S].

    `keys` is 1 or 0 for whole keys, or the share of a key's bits; `seen` [H, S] are the keys that a
    head gave weight to.
    """

    output: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    seen: np.ndarray


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax of each row; -infinity gets no weight."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    found: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return found


@dataclass(frozen=True)
class Cascade:
    """Cascade pruning to the share `last` of the tokens in the last layer."""

    last: float
    values: float = 1.0

    def share(self, layer: int, layers: int) -> float:
        """Return the share of the tokens that a layer reads."""
        first = round(UNPRUNED * layers)
        if layer < first or layers == 1:
            return 1.0
        return 1 - (1 - self.last) * (layer - first + 1) / (layers - first)

    def begin(self) -> CascadeState:
        """Return the state of a text, before its first token."""
        return CascadeState(self)


@dataclass
class CascadeState:
    """The importance of each token so far, and the tokens that each layer has lost."""

    technique: Cascade
    importance: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pruned: list[np.ndarray] = field(default_factory=list)

    def step(self, layers: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> list[Read]:
        """Attend with one token: scaled q [H, D], k and v [G, S, D] of each layer."""
        length, count = layers[0][1].shape[1], len(layers)
        self.importance = _longer(self.importance, length)
        lost = [_longer(each, length) for each in self.pruned]
        self.pruned = lost or [np.zeros(length, bool) for _ in range(count)]
        alive = np.ones(length, bool)
        found = []
        for layer, (q, k, v) in enumerate(layers):
            kept = math.ceil(self.technique.share(layer, count) * length)
            ranks = np.where(alive, self.importance, -1.0)
            ranks[-1] = np.inf  # the token itself has no importance yet
            best = np.zeros(length, bool)
            best[np.argsort(-ranks, kind="stable")[:kept]] = True
            self.pruned[layer] |= ~(best & alive)
            alive = ~self.pruned[layer]
            found.append(self._attend(q, k, v, alive))
        return found

    def _attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, alive: np.ndarray) -> Read:
        groups, _, size = k.shape
        scores = np.einsum("grd,gsd->grs", q.reshape(groups, -1, size), k)
        weights = softmax(np.where(alive, scores, -np.inf))
        self.importance += weights.sum((0, 1))
        most = math.ceil(self.technique.values * alive.sum())
        places = np.argsort(-weights, axis=-1, kind="stable")[..., :most]
        wanted = np.zeros(weights.shape, bool)
        np.put_along_axis(wanted, places, True, -1)
        output = np.einsum("grs,gsd->grd", np.where(wanted, weights, 0), v)
        keys = np.tile(alive, (groups, 1)).astype(float)
        seen = np.tile(alive, (len(q), 1))
        return Read(output.reshape(q.shape), keys, wanted.any(1).astype(float), seen)


def _longer(values: np.ndarray, length: int) -> np.ndarray:
    """Return values with zeros for new tokens."""
    return np.concatenate((values, np.zeros(length - len(values), values.dtype)))


@dataclass(frozen=True)
class TokenPicker:
    """Keys whose softmax weight is provably at most `threshold` are dropped early."""

    threshold: float

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Read:
        """Attend with one token in one layer: scaled q [H, D], k and v [G, S, D]."""
        groups, length, _ = k.shape
        chunks, seen = np.zeros((groups, length)), np.zeros((len(q), length), bool)
        output = np.empty_like(q)
        for head, query in enumerate(q):
            group = head * groups // len(q)
            lows, highs = bounds(query, k[group])
            read = self.chunks(lows, highs)
            seen[head] = read > len(lows)  # neither dropped by the last chunk's bounds
            chunks[group] = np.maximum(chunks[group], np.minimum(read, len(lows)))
            weights = softmax(np.where(seen[head], lows[-1], -np.inf))
            output[head] = weights @ v[group]
        values = seen.reshape(groups, -1, length).any(1)
        return Read(output, chunks / (BITS // CHUNK), values.astype(float), seen)

    def chunks(self, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
        """Return how many chunks of each key are read, [S]; one more if it is kept to the end.

        `lows` and `highs` [chunks, S] are the bounds of its score with 1, 2, ... chunks.
        """
        count, length = lows.shape
        read = np.zeros(length, int)
        total = 0.0
        peak = lows.max()  # bounds are compared relative to it, so that nothing overflows
        for key in (0, *range(length - 1, 0, -1)):
            read[key] = count + 1
            for chunk in range(count):
                most = math.exp(min(highs[chunk, key] - peak, 700.0))
                if most <= self.threshold * (most + total):
                    read[key] = chunk + 1
                    break
            known = min(read[key], count) - 1
            total += math.exp(lows[known, key] - peak)
        return read


def bounds(q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest score of keys k [S, D], by chunks read, each [chunks, S].

    With all chunks both are the score of the rounded key.
    """
    step = np.abs(k).max() / (2 ** (BITS - 1) - 1)
    codes = np.rint(k / step).astype(int)
    lows, highs = [], []
    for rest in range(BITS - CHUNK, -1, -CHUNK):
        known = (codes >> rest << rest) @ q  # the bits below add 0 to 2^rest - 1
        lows.append(known + (2**rest - 1) * np.minimum(q, 0).sum())
        highs.append(known + (2**rest - 1) * np.maximum(q, 0).sum())
    return np.array(lows) * step, np.array(highs) * step
