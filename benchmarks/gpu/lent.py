"""Rows and queries of texts in a random model: SmolLM2 lends them, so that a stop means something.

A head of 128 elements is two heads of 64 side by side, whose scores are added and divided by the
square root of 2: as peaked as those of a real head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedModel

from benchmarks.gpu.parts import Place
from benchmarks.gpu.techniques import prompts
from suffice.integrations.checks import head_shape
from suffice.integrations.device_requests import DeviceRequests

LENDER, TEXTS = "SmolLM2-135M", 8


class Lent:
    """Queries [B, H, 1, D], keys and values [B, G, S, D] of the shape of a model's layers."""

    def __init__(self, place: Place, model: PreTrainedModel) -> None:
        """Run the lender's texts, if they have not been run."""
        self._found = list(prompts(place, LENDER, TEXTS).values())
        decoder = model.config.get_text_config(decoder=True)
        _, self._heads, self._size = head_shape(decoder, 0)
        self._group = decoder.num_attention_heads // self._heads
        self.batch, _, self.count, _ = self._found[0][1].shape

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a layer."""
        _, keys, values = self._found[layer % len(self._found)]
        return self._taken(keys, 1), self._taken(values, 1)

    def queries(self, layer: int) -> torch.Tensor:
        """Return the queries of a layer's last token."""
        return self._taken(self._found[layer % len(self._found)][0], self._group)

    def _taken(self, x: torch.Tensor, group: int) -> torch.Tensor:
        """Return the heads of a layer's tensor side by side, `group` for each key/value head."""
        theirs, keys = x.shape[1], self._found[0][1].shape[1]
        own = theirs // keys  # theirs of a key/value head
        each = -(-self._size // x.shape[-1])
        chosen = [
            ((at // group + side) % keys) * own + at % group % own
            for at in range(self._heads * group)
            for side in range(each)
        ]
        parts = x[:, chosen].unflatten(1, (-1, each)).transpose(2, 3).flatten(3)
        return parts[..., : self._size].contiguous()

    @contextlib.contextmanager
    def asking(self, batch: int) -> Iterator[None]:
        """Let each layer's decode steps ask with the lender's queries."""
        real, kept = DeviceRequests.attend, {}

        def attend(own: Any, index: int, query: torch.Tensor, *given: Any) -> torch.Tensor:
            if index not in kept:
                kept[index] = self.queries(index)[:batch].to(query)
            return real(own, index, kept[index], *given)

        with patch.object(DeviceRequests, "attend", attend):
            yield
