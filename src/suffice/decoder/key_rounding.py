"""Rounding of keys to 4-bit codes, fitted to a model's own keys and queries on a text.

A key's channels differ in size, most of all those of slow position rotations. A Hadamard rotation
gives each element a part of the largest channel, and with it an error of that size. Channels of
keys are therefore first multiplied by scales: the inverse root of a channel's mean square plus
FLOOR times the mean over channels. Channels of queries are divided by the scales, which leaves
scores unchanged.

The error e of a key changes the score of a query q by q.e, so the quantity to minimize is e' S e, S
= E[q q'], not e' e. A head's queries span few directions, and errors in the others cost little.
With S = (1 + A)' diag(w) (1 + A), A strictly lower triangular,

    e' S e = sum over i of w[i] (e[i] + sum over j < i of A[i, j] e[j])^2

so elements are coded in order, and each corrects the errors of those before it as well as its
centroids allow. Before that, the component of a key along the mean key, which holds most of its
length, is removed and stored as a separate factor.

A query's weight in S is the sum of p (1 - p) over the keys that it sees, p their attention weights:
the more its attention can change, the more it counts. The first tokens are left out, since their
keys are unlike all others (attention sinks, Xiao et al. 2023). Random tokens can replace a text,
with worse results.

Rotations by position carry the slow channels of later keys to angles that a short text does not
reach. A text that begins later has the same keys and queries, rotated by its start. One run
therefore yields statistics for consecutive texts; the result is their mean, in which the first
texts count most.

Source   Passing on errors: Frantar et al. 2022 (GPTQ) and Chee et al. 2023 (QuIP), section 3, for
         weights given their inputs. Scales moved between factors: Xiao et al. 2022 (SmoothQuant),
         for inputs and weights. For keys given their queries, and the mean key: this project.
Cost     a prompt of 1024 tokens when a model is loaded for the first time (see `stored_rounding`);
         about 5 D^2 multiplications when a key of D elements is stored, and two when it is read.
Native   csrc/kernels/kv_kmeans4.inl; csrc/kernels/kv_planes.inl, of scales and mean keys alone
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from suffice.arrays import softmax
from suffice.cache import alike
from suffice.cache.growth import Upfront
from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.decoder.config import DecoderConfig
from suffice.decoder.native_model import NativeModel
from suffice.decoder.native_states import state_shapes
from suffice.decoder.rope import rope_table
from suffice.decoder.rotation import Rope
from suffice.decoder.step_rows import StepRows
from suffice.native import core
from suffice.quant import hadamard

VERSION = 1  # of the fit: another one gives other roundings of the same model
TOKENS = 1024
POSITIONS = 4096  # at most, covered by shifted copies of the text
SINKS = 4  # tokens that are left out
DAMPING = 0.02  # fraction of the mean of S's diagonal that is added to it
FLOOR = 0.3  # fraction of the mean of all channels' mean squares that is added to each
TOGETHER = 256  # queries whose scores are computed at a time: small products are slow


class KeyRounding(NamedTuple):
    """How keys are rounded, by layer and head, float32.

    `scales` and `means` [L, G, D] are of channels; `passed` [L, G, D, D] is A transposed, and
    `weights` [L, G, D] are w.
    """

    scales: np.ndarray
    means: np.ndarray
    passed: np.ndarray
    weights: np.ndarray

    @property
    def native(self) -> core.KeyRoundings:
        """The rounding as caches take it."""
        return core.KeyRoundings(*self)


@dataclass(frozen=True)
class Observed:
    """Statistics of a model's keys and queries, by layer and head [L, G].

    `means` [L, G, D] are the mean keys, `squares` the mean squares of keys without their component
    along the mean, and `moments` [L, G, D, D] are S of the queries.
    """

    means: np.ndarray
    squares: np.ndarray
    moments: np.ndarray


def key_rounding(
    model: NativeModel, config: DecoderConfig, positions: int, sample: Sequence[int] = ()
) -> KeyRounding:
    """Return the rounding of the keys of each layer and head.

    It is fitted for up to `positions` positions on at most TOKENS tokens: those of `sample`, then
    random ones if they do not suffice.
    """
    return rounding_of(observed(model, config, positions, sample))


def rounding_of(seen: Observed) -> KeyRounding:
    """Return the rounding of keys with these statistics."""
    scales, block = scales_of(seen.squares), rotation_of(seen.means.shape[-1])
    means = hadamard.rotate(seen.means * scales, block)
    scaled = seen.moments / (scales[..., None] * scales[..., None, :])
    moments = hadamard.rotate(hadamard.rotate(scaled, block).swapaxes(-1, -2), block)
    found = [factors(own) for own in moments.reshape(-1, *moments.shape[-2:])]
    passed, weights = (np.stack(part) for part in zip(*found, strict=True))
    parts = scales, means, passed.reshape(moments.shape), weights.reshape(means.shape)
    return KeyRounding(*(np.ascontiguousarray(part, np.float32) for part in parts))


def rotation_of(size: int) -> int:
    """Return the size of the blocks in which keys of `size` elements are rotated."""
    return size & -size


def scales_of(squares: np.ndarray) -> np.ndarray:
    """Return the scales of channels [..., D] from their mean squares."""
    mean = squares.mean(-1, keepdims=True)
    known = np.divide(squares, mean, where=mean > 0, out=np.ones_like(squares))
    scales: np.ndarray = 1 / np.sqrt(known + FLOOR)
    return scales


def observed(
    model: NativeModel, config: DecoderConfig, positions: int, sample: Sequence[int] = ()
) -> Observed:
    """Run tokens through a model and return the statistics of its keys and queries."""
    count = min(TOKENS, positions, config.longest_text)
    random = np.random.default_rng(0)
    tokens = [token for token in sample if token < config.vocab][:count]
    tokens += random.integers(config.vocab, size=count - len(tokens)).tolist()
    seen = _Seen(config, count)
    for start in range(0, count, MAX_TENTATIVE):
        part = tokens[start : start + MAX_TENTATIVE]
        rows = StepRows(seen.cache, part, outputs=0, exact=True, counted=False, watch=seen.take)
        model.step([rows])
        seen.cache.commit(list(range(len(part))))
        seen.add_taken(all_of_them=seen.cache.length == count)
    begins = range(0, min(positions, POSITIONS), count)
    shares = _shares(len(begins))
    turns = [[_turn(config, rope, begin) for begin in begins] for rope in config.ropes]
    means, squares, moments = [], [], []
    for index, layer in enumerate(config.cached):
        own = turns[layer.rope] if layer.rope is not None else []
        keys, products = seen.cache.keys(index)[:, seen.first :], seen.moments[index]
        later = [_rotated(keys, *by) for by in own] or [keys]
        rotated = [_rotated(_rotated(products, *by).swapaxes(-1, -2), *by) for by in own]
        means.append(_mixed([each.mean(1) for each in later], shares))
        rest = [np.square(_without(each, means[-1])).mean(1) for each in later]
        squares.append(_mixed(rest, shares))
        moments.append(_mixed(rotated or [products], shares))
    return Observed(np.stack(means), np.stack(squares), np.stack(moments))


def _shares(count: int) -> np.ndarray:
    """Return how often the positions of each of `count` consecutive texts occur; the sum is 1.

    A context that reaches a position has passed all earlier ones. If contexts of every length are
    equally frequent, positions of the last text occur half as often as a context ends in it, and
    those of each earlier text once more often.
    """
    times = np.arange(count, 0, -1) - 0.5
    shares: np.ndarray = times / times.sum()
    return shares


def _mixed(values: list[np.ndarray], shares: np.ndarray) -> np.ndarray:
    """Return the weighted mean of values [...] with these shares; a single value unchanged."""
    if len(values) == 1:
        return values[0]
    mixed: np.ndarray = np.tensordot(shares.astype(values[0].dtype), np.stack(values), axes=1)
    return mixed


def _turn(config: DecoderConfig, rope: Rope, by: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines [1, pairs] that rotate keys by `by` positions."""
    cos, sin = rope_table(rope, config.head_size, config.trained_positions, 1, by)
    factor = np.hypot(cos, sin)
    return cos / factor, sin / factor


def _rotated(rows: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotate the pairs (d, d + P) of the first 2 P entries of rows [G, T, D] by tables [1, P]."""
    pairs = cos.shape[-1]
    low, high, rest = np.split(rows, (pairs, 2 * pairs), axis=-1)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin, rest), axis=-1)


def _without(keys: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return keys [G, T, D] without their components along the directions [G, D], in float64."""
    keys, means = keys.astype(np.float64), means.astype(np.float64)
    lengths = np.linalg.norm(means, axis=-1, keepdims=True).clip(min=1e-12)
    unit = (means / lengths)[:, None]
    rest: np.ndarray = keys - (keys * unit).sum(-1, keepdims=True) * unit
    return rest


def factors(second_moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A transposed, [D, D], and w [D], float32, of S [D, D], damped and of mean 1."""
    size = len(second_moments)
    mean = float(second_moments.trace()) / size
    identity = np.eye(size)
    damped = second_moments.astype(np.float64) / mean + DAMPING * identity if mean > 0 else identity
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    roots = upper.diagonal()
    return (upper / roots - identity).astype(np.float32), np.square(roots).astype(np.float32)


class _Seen:
    """The keys of a run, and the second moments of its queries."""

    def __init__(self, config: DecoderConfig, count: int) -> None:
        layers, groups, size = len(config.cached), config.kv_heads, config.head_size
        self.config = config
        self.first = min(SINKS, count - 1)
        self.cache = KVCache(
            alike(layers, groups, size),
            growth=Upfront(),
            limit=count,
            key_dtype="float32",
            value_dtype="float32",
            states=state_shapes(config.states),
        )
        self.cache.reserve(count)
        self.moments = np.zeros((layers, groups, size, size))
        self._taken: list[list[np.ndarray]] = [[] for _ in range(layers)]
        self._added = 0  # tokens

    def take(self, layer: int, queries: np.ndarray) -> None:
        """Keep the queries [H, T, D] of a step, whose threads wait meanwhile."""
        self._taken[layer].append(queries.copy())

    def add_taken(self, all_of_them: bool) -> None:
        """Add the queries of steps that have ended, once there are TOGETHER of them."""
        if self.cache.length - self._added < TOGETHER and not all_of_them:
            return
        for layer, taken in enumerate(self._taken):
            self._add(layer, np.concatenate(taken, axis=1))
            taken.clear()
        self._added = self.cache.length

    def _add(self, layer: int, queries: np.ndarray) -> None:
        """Add the queries [H, T, D] of the cache's last rows."""
        start, count = self._added, queries.shape[1]
        keys = self.cache.keys(layer)
        groups, size = len(keys), keys.shape[-1]
        rows = queries.reshape(groups, -1, size)  # [G, H / G T, D]
        scores = self.config.attention_scale * rows @ keys.swapaxes(-1, -2)
        distance = np.arange(start, start + count)[:, None] - np.arange(start + count)
        window = self.config.cached[layer].window or start + count
        hidden = np.where((distance >= 0) & (distance < window), np.float32(0), -np.inf)
        p = softmax(scores.reshape(groups, -1, *hidden.shape) + hidden)
        weights = (p * (1 - p)).sum(-1, keepdims=True)
        kept = slice(max(self.first - start, 0), None)
        apart = queries.reshape(groups, -1, count, size)
        left, right = (
            x[:, :, kept].astype(np.float64).reshape(groups, -1, size)
            for x in (weights * apart, apart)
        )
        self.moments[layer] += left.swapaxes(-1, -2) @ right
