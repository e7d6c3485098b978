"""How far the traversal of keys and values goes, and with which arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from suffice.registry import Table

if TYPE_CHECKING:
    import torch

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


ATTENTIONS = Table("attention", {"exact": "suffice.attention.exact:Exact"})
