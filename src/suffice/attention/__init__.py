"""How far the traversal of keys and values goes, and with which arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from suffice.registry import Table

if TYPE_CHECKING:
    import torch

    from suffice.cache.kv import KVCache

__all__ = ["ATTENTIONS", "Attention"]


class Attention(Protocol):
    """A way to attend."""

    @classmethod
    def exact_limit(cls) -> Attention | None:
        """Return the setting that must equal `exact`, None if the technique has a bound instead."""
        ...

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float,
        visible: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the output [H, T, D] of one request, computed as the source defines it.

        `q` [H, T, D], `k` and `v` [G, S, D], `visible` bool [T, S]: the cached tokens that a new
        one attends to (None = all).
        """
        ...

    def native(
        self,
        q: torch.Tensor,
        cache: KVCache,
        layer: int,
        *,
        scale: float,
        window: int | None = None,
        blocks: list[int] | None = None,
    ) -> torch.Tensor:
        """Return what `reference` gives for one layer of a cache, computed by the native kernel.

        `q` float32 [H, T, D] are the queries of the cache's T tentative rows or, if there are none,
        of its last T rows, each of which sees those before it. `window`: rows a query sees at
        most, its own included. `blocks`: which blocks of 16 rows are read, in which order (None =
        all that are visible).
        """
        ...


ATTENTIONS = Table("attention", {"exact": "suffice.attention.exact:Exact"})
