"""Latent attention in PyTorch: each head's keys and values are made of the cached rows.

The core never makes them: it multiplies queries and outputs instead. So this is another way to the
same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suffice.decoder.latent import Latent


@dataclass(frozen=True)
class LatentHeads:
    """The matrices of a layer's heads: `key_up` [H, rank, plain], `value_up` [H, value, rank]."""

    latent: Latent
    key_up: torch.Tensor
    value_up: torch.Tensor

    def keys(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the keys [H, S, plain + rotated] that heads make of rows [S, rank + rotated]."""
        own = self.latent
        plain = torch.einsum("sr,hrp->hsp", rows[:, : own.rank], self.key_up)
        rotated = rows[:, own.rank :].expand(len(plain), -1, -1)
        return torch.cat((plain, rotated), dim=-1)

    def values(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values [H, S, value] that heads make of rows [S, rank + rotated]."""
        return torch.einsum("sr,hvr->hsv", rows[:, : self.latent.rank], self.value_up)

    def absorbed(self, q: torch.Tensor) -> torch.Tensor:
        """Return queries [H, T, rank + rotated] for rows, of [H, T, plain + rotated] for keys."""
        plain, rotated = torch.split(q, [self.latent.plain, self.latent.rotated], dim=-1)
        return torch.cat((torch.einsum("htp,hrp->htr", plain, self.key_up), rotated), dim=-1)
