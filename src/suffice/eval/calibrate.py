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

import torch

from suffice.attention.exaq import TABLE, fitted_clip
from suffice.attention.exaq_km import fitted
from suffice.attention.levels import TAILS
from suffice.attention.output_error import BINS, EDGES, OutputError

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache
    from suffice.engine.runner import Runner

TOGETHER = 4  # windows per sigma
EVERY = 16  # one query in this many is used


@dataclass
class Spread:
    """Standard deviation and minimum of a layer's x."""

    least: list[float] = field(default_factory=list)  # per window
    sigmas: list[float] = field(default_factory=list)  # per group of windows
    _moments: torch.Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    _windows: int = 0

    def add(self, moments: torch.Tensor, least: float) -> None:
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
        self._moments.zero_()
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
        self._spread = [Spread() for _ in model.layers]
        shape = len(model.layers), model.heads
        self._gram = torch.zeros(*shape, BINS, BINS, dtype=torch.float64)
        self._sums = torch.zeros(*shape, BINS, dtype=torch.float64)
        self._keys = torch.zeros_like(self._sums)
        self._mass = torch.zeros_like(self._sums)  # sum of |v - o|^2 / Z^2
        self._moment = torch.zeros_like(self._sums)  # the same times e^x
        self._queries = 0  # used so far, per head
        self._edges = torch.from_numpy(EDGES).float()

    def run(self, windows: Sequence[list[int]]) -> Iterator[int]:
        """Run windows of tokens; yield the number of finished windows after each.

        Raises:
            OutOfMemory: There is no memory for a window.
        """
        for done, window in enumerate(windows):
            sequence = self._runner.open("calibrate", len(window))
            try:
                self._forward(window, sequence.cache)
            finally:
                self._runner.close(sequence)
            self._queries += len(range(0, len(window), EVERY))
            yield done + 1

    def _forward(self, tokens: list[int], cache: KVCache) -> None:
        decoder = self._runner.decoder

        def watch(layer: int, q: torch.Tensor) -> None:
            rows = q.shape[1]
            window = decoder.config.layers[layer].window
            self._watch(layer, q, cache.keys(layer, rows), cache.values(layer, rows), window)

        decoder.forward(torch.tensor(tokens), cache, logits="none", watch=watch)

    def _watch(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None
    ) -> None:
        """Add the statistics of a layer: queries [H, T, D], keys and values [G, T, D]."""
        heads, rows, _ = q.shape
        seen = torch.ones(rows, rows, dtype=torch.bool).tril()
        if window is not None:
            seen &= seen.new_ones(seen.shape).triu(1 - window)
        moments, least = torch.zeros(3, dtype=torch.float64), 0.0
        for head in range(heads):
            group = head * len(k) // heads
            scores = (self._scale * q[head] @ k[group].T).masked_fill(~seen, float("-inf"))
            x = scores - scores.amax(-1, keepdim=True)
            known = x.masked_fill(~seen, 0.0)
            total, squares = known.sum(-1), (known * known).sum(-1)
            moments += torch.stack([seen.sum(), total.double().sum(), squares.double().sum()])
            least = min(least, float(known.min()))
            self._add_queries(layer, head, x[::EVERY].contiguous(), v[group])
        self._spread[layer].add(moments, least)

    def _add_queries(self, layer: int, head: int, x: torch.Tensor, v: torch.Tensor) -> None:
        """Add R queries of a head to the sums: x [R, T], -infinity where masked; v [T, D]."""
        seen, u = x > float("-inf"), x.exp()
        total = u.sum(-1, keepdim=True)
        output = u @ v / total
        off = (v * v).sum(-1) - 2 * output @ v.T + (output * output).sum(-1, keepdim=True)
        mass = (off.clamp(min=0) / total**2 * seen).double().flatten()
        bins = torch.bucketize(x, self._edges, right=True)
        for to, part in ((self._mass, mass), (self._moment, mass * u.double().flatten())):
            to[layer, head] += torch.bincount(bins.flatten(), part, minlength=BINS)
        # Sums over all keys above each edge; their differences are the sums of the bins.
        above = torch.cat((seen[None], x >= self._edges[:, None, None])).float()
        counts = above.sum(-1)  # [BINS, R]
        moved = (above @ v - counts[..., None] * output) / total
        moved[:-1] -= moved[1:].clone()
        counts[:-1] -= counts[1:].clone()
        flat = moved.flatten(1)
        self._gram[layer, head] += (flat @ flat.T).double()
        self._sums[layer, head] += (counts / total[:, 0]).sum(-1).double()
        self._keys[layer, head] += counts.sum(-1).double()

    def fit(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield for each layer, by number of bits, the codebooks of `exaq_km` and C of `exaq`."""
        for gram, sums, keys, mass, moment in zip(
            self._gram, self._sums, self._keys, self._mass, self._moment, strict=True
        ):
            means = moment / mass.clamp(min=1e-300)
            errors = [
                OutputError(matrix.numpy(), total.numpy(), count.numpy(), self._queries)
                for matrix, total, count in zip(gram, sums, keys, strict=True)
            ]
            heads = [*zip(mass.numpy(), means.numpy(), errors, strict=True)]
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
