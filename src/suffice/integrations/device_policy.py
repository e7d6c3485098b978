"""Policies on a GPU: what they see of a request's rows there, and scores of a prompt's end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from suffice.errors import InputError
from suffice.integrations.device_layer import DeviceLayer, Ring
from suffice.policy import POLICIES, Policy, Windows
from suffice.policy.quest import Quest
from suffice.policy.snapkv import SnapKV
from suffice.policy.streaming import Streaming

NAMES = ("full", "pyramidkv", "quest", "snapkv", "streaming")


def check_policy(policy: Policy, kind: str) -> None:
    """Refuse a policy that GPUs do not have with rules of a kind.

    Raises:
        InputError: It is one.
    """
    name = POLICIES.name_of(policy)
    if name not in NAMES:
        raise InputError(f"policy '{name}' on a GPU: must be {', '.join(NAMES)}")
    if isinstance(policy, Streaming) and (policy.rank_only or kind != "read_all"):
        raise InputError(
            "policy 'streaming' on a GPU: must evict, with attention 'exact': its rows lie in no "
            "order"
        )
    chooses = {"aet": SnapKV | Quest, "skip_softmax": Quest}
    if kind in chooses and isinstance(policy, chooses[kind]):
        raise InputError(f"policy '{name}' with attention '{kind}' on a GPU: must be 'full'")


class RequestRows:
    """One request's rows on a GPU, as policies see a cache."""

    def __init__(
        self, layers: Sequence[DeviceLayer], windows: Windows, request: int, length: int
    ) -> None:
        self._layers, self._windows, self._request = layers, windows, request
        self.length = length  # tokens of the text

    def heads(self, layer: int) -> int:
        """Return the number of a layer's key/value heads."""
        return int(self._layers[layer].keys.shape[1])

    def held(self, layer: int) -> int:
        """Return how many rows a layer holds."""
        return self._layers[layer].rows[self._request]

    def keys(self, layer: int) -> torch.Tensor:
        """Return a layer's keys [G, S, D]."""
        return self._layers[layer].keys[self._request, :, : self.held(layer)]

    def evict(self, layer: int, rows: np.ndarray) -> None:
        """Keep the rows `rows` [G, n] of a layer."""
        self._layers[layer].evict(self._request, rows)

    def rank(self, layer: int, order: np.ndarray) -> None:
        """Set the order [G, n] of the first n blocks of a layer."""
        self._layers[layer].rank(self._request, order)

    def set_visible(self, layer: int, *, sinks: int = 0, recent: int = 0, blocks: int = 0) -> None:
        """Set what tokens see of a layer: see `suffice.cache.kv.KVCache.set_visible`.

        A layer's own window, which policies set too, comes from the model's masks.
        """
        own = self._layers[layer]
        if blocks and own.boxes is not None:
            own.boxes.limit(self._request, blocks)
        if recent and self._windows[layer] is None:
            own.turn(self._request, Ring(sinks, sinks + recent))


class ObservedThere:
    """A `QueryObserver` of tensors; see `suffice.policy.observation.Observed`."""

    def __init__(self, rows: int, scale: float) -> None:
        self.rows, self.scale = rows, scale
        self._queries: dict[int, torch.Tensor] = {}

    def add(self, layer: int, q: torch.Tensor, end: int) -> None:
        """Store queries [H, T, D]."""
        before = self._queries.get(layer, q[:, :0])
        self._queries[layer] = torch.cat((before, q), 1)[:, -self.rows :]

    def scores(self, cache: RequestRows, layer: int, kernel: int, pool: str) -> np.ndarray:
        """Return the pooled attention of the prompt's end; see `observed_scores`."""
        q, k = self._queries[layer], cache.keys(layer)
        found = observed_scores(q, k, scale=self.scale, kernel=kernel, pool=pool)
        return found.cpu().numpy()


def observed_scores(
    q: torch.Tensor, k: torch.Tensor, *, scale: float, kernel: int, pool: str
) -> torch.Tensor:
    """Return what `suffice.policy.observation.observed_scores` does, [G, S - w], on the device."""
    (groups, rows, size), (heads, window, _) = k.shape, q.shape
    hidden = torch.ones(window, window, dtype=torch.bool, device=q.device).triu(1)
    means = torch.empty(groups, rows - window, device=q.device)
    if rows == window:
        return means
    for group, own in enumerate((scale * q.float()).view(groups, -1, window, size)):
        scores = own @ k[group].float().T
        scores[..., rows - window :].masked_fill_(hidden, -torch.inf)
        weights = scores.softmax(-1).sum((0, 1))[: rows - window]
        means[group] = weights / (window * (heads // groups))
    pooled = functional.max_pool1d if pool == "max" else functional.avg_pool1d
    return pooled(means[None], kernel, 1, kernel // 2)[0]
