"""A coded softmax in PyTorch: texts whose every softmax goes by codes, as in prompts of the engine.

It is `suffice.attention.levels` on tensors: the code of x = score - max is the number of borders
that x reaches, and a table has the weight of each code. Masked keys have no code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.harness.torch_texts import TextsDecoder
from suffice.attention.levels import Levels


class CodedTexts(TextsDecoder):
    """Runs texts with the exact softmax, or by codes once it has the levels of its heads."""

    _by_layer: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def use(self, levels: Sequence[Sequence[Levels]]) -> None:
        """Take the levels of each layer and query head, [L][H]; none: the exact softmax."""
        self._by_layer = [
            (
                torch.tensor([head.borders for head in layer]).to(self.device),
                torch.tensor([head.weights for head in layer]).to(self.device),
            )
            for layer in levels
        ]

    def _weights(self, index: int, scores: torch.Tensor) -> torch.Tensor:
        if not self._by_layer:
            return super()._weights(index, scores)
        return coded_softmax(scores, *self._by_layer[index])


def coded_softmax(
    scores: torch.Tensor, borders: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return the softmax by codes of scores [H, ..., S], -infinity where masked.

    Each head has its `borders` [H, C - 1] and the `weights` [H, C] of its C codes.
    """
    x = scores - scores.amax(-1, keepdim=True)
    codes = torch.searchsorted(borders, x.flatten(1), right=True)
    found = weights.gather(1, codes).view_as(x).masked_fill(x == -torch.inf, 0)
    return found / found.sum(-1, keepdim=True)
