"""Attention of the last tokens of a prompt."""

from __future__ import annotations

import torch
from torch.nn import functional


class Observed:
    """A `QueryObserver` that keeps the queries of the last `rows` tokens of each layer."""

    def __init__(self, rows: int, scale: float) -> None:
        self.rows = rows
        self.scale = scale
        self._queries: dict[int, torch.Tensor] = {}

    def add(self, layer: int, q: torch.Tensor, end: int) -> None:
        """Store queries [H, T, D]; see `QueryObserver`."""
        before = self._queries.get(layer, q[:, :0])
        self._queries[layer] = torch.cat((before, q), dim=1)[:, -self.rows :].clone()

    def queries(self, layer: int) -> torch.Tensor:
        """Return a layer's last queries [H, w, D]; w is smaller if the prompt was shorter."""
        return self._queries[layer]


def attention_of(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the softmax [G, R, w, S] of the last w of S tokens: q [H, w, D], k [G, S, D].

    The R = H / G heads that share keys are adjacent.
    """
    groups, rows, _ = k.shape
    window = q.shape[1]
    grouped = q.reshape(groups, -1, window, q.shape[-1])
    scores = scale * grouped @ k[:, None].transpose(-1, -2)
    hidden = torch.ones(window, rows, dtype=torch.bool).triu(rows - window + 1)
    return scores.masked_fill_(hidden, float("-inf")).softmax(-1)


def observed_scores(
    q: torch.Tensor, k: torch.Tensor, *, scale: float, kernel: int, pool: str
) -> torch.Tensor:
    """Return the pooled attention of the last w tokens to each earlier token, [G, S - w].

    It is the mean softmax over the w tokens and the heads that share keys, then the maximum or mean
    (padded by 0) over `kernel` neighbours.
    """
    window = q.shape[1]
    means = attention_of(q, k, scale).mean(dim=(1, 2))[:, : k.shape[1] - window]
    if not means.shape[1]:
        return means
    pooling = functional.max_pool1d if pool == "max" else functional.avg_pool1d
    return pooling(means, kernel, stride=1, padding=kernel // 2)
