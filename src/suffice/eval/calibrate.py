"""Statistics of a model's softmax inputs over a text; see `suffice.attention.calibration`.

Each window of the text runs as a prompt, with exact attention. With x = score - max of a row, over
all unmasked entries of all heads of a layer,

    sigma           the standard deviation of x in four windows, mean over such groups
    least           the least x of a window, mean over the windows

For each query head, every sixteenth query also adds to the sums that
`suffice.attention.output_error` and the K-means of `suffice.attention.exaq_km` need.

Source   sigma and least: the reference implementation of EXAQ, which calibrates on 25 batches of 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.attention.exaq import TABLE, fitted_clip
from suffice.attention.exaq_km import fitted
from suffice.attention.levels import TAILS
from suffice.attention.output_error import BINS, EDGES, OutputError

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache
    from suffice.engine.runner import Runner

TOGETHER = 4  # windows per sigma
EVERY = 16  # one query in this many is used
ROWS = 240  # queries of a layer that are processed together: whole chunks of a prompt


@dataclass
class Spread:
    """Standard deviation and minimum of a layer's x."""

    least: list[float] = field(default_factory=list)  # per window
    sigmas: list[float] = field(default_factory=list)  # per group of windows
    _moments: np.ndarray = field(default_factory=lambda: np.zeros(3))
    _windows: int = 0

    def add(self, moments: np.ndarray, least: float) -> None:
        """Add a window: its moments (number of x, their sum, sum of squares) and its minimum."""
        self.least.append(least)
        self._moments += moments
        self._windows += 1
        if self._windows == TOGETHER:
            self._finish()

    def _finish(self) -> None:
        entries, total, squares = self._moments.tolist()
        variance = (squares - total * total / entries) / max(entries - 1, 1)
        self.sigmas.append(max(variance, 0.0) ** 0.5)
        self._moments[:] = 0
        self._windows = 0

    def plain(self) -> dict[str, float]:
        """Return the means over all windows and groups."""
        if self._windows and not self.sigmas:  # fewer windows than one group
            self._finish()
        return {
            "sigma": sum(self.sigmas) / len(self.sigmas),
            "least": sum(self.least) / len(self.least),
        }


class Calibrator:
    """Collects statistics of the softmax inputs of a runner's model."""

    def __init__(self, runner: Runner) -> None:
        model = runner.decoder.config
        self._runner = runner
        self._scale = model.attention_scale
        self._spread = [Spread() for _ in model.cached]
        shape = len(model.cached), model.heads
        self._gram = np.zeros((*shape, BINS, BINS))
        self._sums = np.zeros((*shape, BINS))
        self._keys = np.zeros_like(self._sums)
        self._mass = np.zeros_like(self._sums)  # sum of |v - o|^2 / Z^2
        self._moment = np.zeros_like(self._sums)  # the same times e^x
        self._queries = 0  # used so far, per head
        self._edges = EDGES.astype(np.float32)

    def run(self, windows: Sequence[list[int]]) -> Iterator[int]:
        """Run windows of tokens; yield the number of finished windows after each.

        Raises:
            OutOfMemory: There is no memory for a window.
        """
        for done, window in enumerate(windows):
            sequence = self._runner.open("calibrate", len(window))
            try:
                seen = _Window(self, sequence.cache, len(window))
                self._runner.observe(sequence, window, seen)
                for spread, moments, least in zip(
                    self._spread, seen.moments, seen.least, strict=True
                ):
                    spread.add(moments, least)
            finally:
                self._runner.close(sequence)
            self._queries += len(range(0, len(window), EVERY))
            yield done + 1

    def add(
        self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Add the sums of a layer's last T of S tokens; return moments and minimum of their x.

        q is [H, T, D]; k and v are [G, S, D]. The moments are the number of x, their sum and their
        sum of squares.
        """
        heads, rows, _ = q.shape
        first = k.shape[1] - rows
        distance = np.arange(first, first + rows)[:, None] - np.arange(k.shape[1])
        seen = distance >= 0
        window = self._runner.decoder.config.cached[layer].window
        if window is not None:
            seen &= distance < window
        moments, least = np.array([heads * seen.sum(), 0.0, 0.0]), 0.0
        used = slice(-first % EVERY, None, EVERY)
        for head in range(heads):
            group = head * len(k) // heads
            scores = np.where(seen, self._scale * q[head] @ k[group].T, -np.inf)
            x = scores - scores.max(-1, keepdims=True)
            known = np.where(seen, x, 0)
            moments[1] += known.sum(-1).sum(dtype=np.float64)
            moments[2] += (known * known).sum(-1).sum(dtype=np.float64)
            least = min(least, float(known.min()))
            self._add_queries(layer, head, x[used], v[group])
        return moments, least

    def _add_queries(self, layer: int, head: int, x: np.ndarray, v: np.ndarray) -> None:
        """Add R queries of a head to the sums: x [R, S], -infinity where masked; v [S, D]."""
        seen, u = x > -np.inf, np.exp(x)
        total = u.sum(-1, keepdims=True)
        output = u @ v / total
        off = (v * v).sum(-1) - 2 * output @ v.T + (output * output).sum(-1, keepdims=True)
        mass = (off.clip(min=0) / total**2 * seen).astype(np.float64).ravel()
        bins = np.searchsorted(self._edges, x, side="right")
        for to, part in ((self._mass, mass), (self._moment, mass * u.ravel())):
            to[layer, head] += np.bincount(bins.ravel(), part, minlength=BINS)
        # Sums over all keys above each edge; their differences are the sums of the bins.
        above = np.concatenate((seen[None], x >= self._edges[:, None, None])).astype(np.float32)
        counts = above.sum(-1)  # [BINS, R]
        moved = (above @ v - counts[..., None] * output) / total
        moved[:-1] -= moved[1:].copy()
        counts[:-1] -= counts[1:].copy()
        flat = moved.reshape(BINS, -1)
        self._gram[layer, head] += flat @ flat.T
        self._sums[layer, head] += (counts / total[:, 0]).sum(-1)
        self._keys[layer, head] += counts.sum(-1)

    def fit(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield for each layer, by number of bits, the codebooks of `exaq_km` and C of `exaq`."""
        for gram, sums, keys, mass, moment in zip(
            self._gram, self._sums, self._keys, self._mass, self._moment, strict=True
        ):
            means = moment / mass.clip(min=1e-300)
            errors = [
                OutputError(matrix, total, count, self._queries)
                for matrix, total, count in zip(gram, sums, keys, strict=True)
            ]
            heads = [*zip(mass, means, errors, strict=True)]
            books = {
                str(bits): [asdict(fitted(*head, 2**bits)) for head in heads] for bits in TABLE
            }
            clips = {
                tail: {
                    str(bits): [fitted_clip(bits, tail, error) for error in errors]
                    for bits in TABLE
                }
                for tail in TAILS
            }
            yield books, clips

    def softmax(self, fits: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
        """Return the part "softmax" of a calibration; `fits` is the output of `fit`."""
        bits = [str(each) for each in TABLE]
        return {
            "layers": [spread.plain() for spread in self._spread],
            "codebooks": {b: [books[b] for books, _ in fits] for b in bits},
            "clips": {tail: {b: [c[tail][b] for _, c in fits] for b in bits} for tail in TAILS},
        }


class _Window:
    """Adds a window to a calibrator, layer by layer, once ROWS queries or all are there."""

    def __init__(self, calibrator: Calibrator, cache: KVCache, tokens: int) -> None:
        self._calibrator, self._cache, self._tokens = calibrator, cache, tokens
        self._waiting: list[list[np.ndarray]] = [[] for _ in range(cache.layers)]
        self.moments = np.zeros((cache.layers, 3))
        self.least = [0.0] * cache.layers

    def add(self, layer: int, q: np.ndarray, end: int) -> None:
        """Take the queries of the tokens before `end`; see `QueryObserver`."""
        waiting = self._waiting[layer]
        waiting.append(q)
        if end < self._tokens and sum(part.shape[1] for part in waiting) < ROWS:
            return
        rows = np.concatenate(waiting, axis=1)
        waiting.clear()
        keys, values = self._cache.keys(layer, end), self._cache.values(layer, end)
        moments, least = self._calibrator.add(layer, rows, keys, values)
        self.moments[layer] += moments
        self.least[layer] = min(self.least[layer], least)
