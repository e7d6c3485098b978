"""What the softmax inputs of a model are like, over a text; see `suffice.attention.calibration`.

The text runs as prompts, window by window, exactly. With x = score - max of a row, over the entries
that are not masked, of all heads of a layer,

    sigma           the standard deviation of x in a window, mean over the windows
    least           the least x of a window, mean over the windows
    codebooks       by query head: K-means of e^x, see `suffice.attention.exaq_km`

Source   sigma and least: the reference implementation of EXAQ, which calibrates on 25 batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from suffice.attention.exaq import TABLE
from suffice.attention.exaq_km import codebook

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache
    from suffice.engine.runner import Runner

LOWEST, BINS_PER_NAT = -16, 32  # x below the lowest shares a bin: e^-16 is nothing beside 1
BINS = -LOWEST * BINS_PER_NAT


class Calibrator:
    """Gathers what is to be known of the softmax inputs of a runner's model."""

    def __init__(self, runner: Runner) -> None:
        model = runner.decoder.config
        self._runner = runner
        self._scale = model.attention_scale
        self._sigma: list[list[float]] = [[] for _ in model.layers]
        self._least: list[list[float]] = [[] for _ in model.layers]
        shape = len(model.layers), model.heads, BINS
        self._mass = torch.zeros(shape, dtype=torch.float64)  # sum of 1 / Z^2
        self._moment = torch.zeros(shape, dtype=torch.float64)  # sum of e^x / Z^2

    def run(self, windows: Sequence[list[int]]) -> Iterator[int]:
        """Run windows of tokens; yield how many are done after each.

        Raises:
            OutOfMemory: There is no memory for a window.
        """
        for done, window in enumerate(windows):
            sequence = self._runner.open("calibrate", len(window))
            try:
                self._forward(window, sequence.cache)
            finally:
                self._runner.close(sequence)
            yield done + 1

    def _forward(self, tokens: list[int], cache: KVCache) -> None:
        decoder = self._runner.decoder

        def watch(layer: int, q: torch.Tensor) -> None:
            window = decoder.config.layers[layer].window
            self._watch(layer, q, cache.keys(layer, q.shape[1]), window)

        decoder.forward(torch.tensor(tokens), cache, logits="none", watch=watch)

    def _watch(self, layer: int, q: torch.Tensor, k: torch.Tensor, window: int | None) -> None:
        """Take note of a layer's queries [H, T, D] and keys [G, T, D]."""
        heads, rows, _ = q.shape
        seen = torch.ones(rows, rows, dtype=torch.bool).tril()
        if window is not None:
            seen &= seen.new_ones(seen.shape).triu(1 - window)
        entries, total, squares, least = 0, 0.0, 0.0, 0.0
        for head in range(heads):
            scores = self._scale * q[head] @ k[head * len(k) // heads].T
            scores = scores.masked_fill(~seen, float("-inf"))
            x = scores - scores.max(-1, keepdim=True).values
            self._count(layer, head, x)
            known = x[seen].double()
            entries += len(known)
            total += float(known.sum())
            squares += float((known * known).sum())
            least = min(least, float(known.min()))
        variance = (squares - total * total / entries) / max(entries - 1, 1)
        self._sigma[layer].append(max(variance, 0.0) ** 0.5)
        self._least[layer].append(least)

    def _count(self, layer: int, head: int, x: torch.Tensor) -> None:
        u = x.exp()
        weight = (u.sum(-1, keepdim=True) ** -2) * (x > float("-inf"))
        bins = ((x - LOWEST) * BINS_PER_NAT).clamp(0, BINS - 1).long().flatten()
        for to, part in ((self._mass, weight), (self._moment, weight * u)):
            to[layer, head] += torch.bincount(bins, part.flatten().double(), minlength=BINS)

    def codebooks(self) -> Iterator[tuple[int, int, list[tuple[float, ...]]]]:
        """Yield number of bits, layer and the centroids of each query head."""
        for bits in TABLE:
            for layer, mass in enumerate(self._mass):
                means = self._moment[layer] / mass.clamp(min=1e-300)
                found = [
                    codebook(own.numpy(), mean.numpy(), 2**bits)
                    for own, mean in zip(mass, means, strict=True)
                ]
                yield bits, layer, found

    def softmax(self, books: dict[int, list[list[tuple[float, ...]]]]) -> dict[str, Any]:
        """Return the part "softmax" of a calibration, with the codebooks that were found."""
        layers = [
            {"sigma": sum(sigma) / len(sigma), "least": sum(least) / len(least)}
            for sigma, least in zip(self._sigma, self._least, strict=True)
        ]
        return {"layers": layers, "codebooks": {str(bits): book for bits, book in books.items()}}
