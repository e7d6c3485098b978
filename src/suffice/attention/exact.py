"""Softmax attention over every visible key.

    o[h, t] = sum_s softmax_s(scale * q[h, t] . k[g, s]) v[g, s],  g = h // (H / G)

Source   Vaswani et al., 2017, Eq. 1; Ainslie et al., 2023 (query heads that share keys and values).
Exact    always.
Cost     2 D multiply-adds per visible token and query head.
Native   csrc/kernels/attention.inl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from suffice.cache.kv import KVCache


@dataclass(frozen=True)
class Exact:
    """Attention that reads everything it may."""

    @classmethod
    def exact_limit(cls) -> Exact:
        """Return the only setting there is."""
        return cls()

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float,
        visible: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the output [H, T, D]; see `Attention.reference` for the shapes."""
        group = q.shape[0] // k.shape[0]
        output = q.new_empty(q.shape)
        for head, queries in enumerate(q):
            scores = scale * queries @ k[head // group].T
            if visible is not None:
                scores = scores.masked_fill(~visible, float("-inf"))
            output[head] = scores.softmax(-1) @ v[head // group]
        return output

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
        """Return the output [H, T, D]; see `Attention.native`."""
        import torch

        count = q.shape[1]
        visible = cache.visible() or [(2 << i) - 1 for i in range(count)]
        length = cache.length if cache.tentative else cache.length - count
        rows = q.transpose(0, 1).contiguous()
        out = torch.empty_like(rows)
        masks = torch.tensor(visible, dtype=torch.int64).to(torch.int32)
        order = None if blocks is None else torch.tensor(blocks, dtype=torch.int32)
        cache.native.attend(layer, length, rows, masks, scale, window or 0, order, out)
        return out.transpose(0, 1)
