"""The MLPs of a decoder in PyTorch, dense and of experts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from suffice.decoder.blocks import DenseMLP, ExpertMLP
from suffice.quantize.torch_layers import ACTIVATIONS, gated, route, xielu
from suffice.quantize.torch_weights import TorchWeights


class TorchMLPs(TorchWeights):
    """Computes blocks of layers, of rows x [T, M] that they read."""

    def _mlp(self, index: int, block: DenseMLP, x: torch.Tensor) -> torch.Tensor:
        at = f"layers.{index}."
        up = self._linear(at + "up", x)
        if block.gated:
            gate = block.gate_scale * self._linear(at + "gate", x)
            inner = gated(block.activation, gate, up)
        elif block.vectors:
            inner = xielu(up, *self.curve(index).tolist())
        else:
            inner = ACTIVATIONS[block.activation](up)
        return self._linear(at + "down", inner)

    def _experts(
        self, index: int, block: ExpertMLP, x: torch.Tensor, stream: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum of the outputs of experts, in their order, and of the shared one."""
        experts, at = block.experts, f"layers.{index}."
        weights = self._routes(index, block, x, stream)
        read = self._linear(at + "narrow", x) if experts.narrow else x
        self._note_visits(read, weights)
        y = torch.zeros_like(read)
        for expert in range(experts.count):
            rows = weights[:, expert].nonzero()[:, 0]
            if not len(rows):
                continue
            own = weights[rows, expert, None]
            given = own * read[rows] if experts.before else read[rows]
            inner = self.inner_of(index, block, expert, given)
            found = self.expert(at + "expert_down", expert, block.entries, inner)
            y = y.index_add(0, rows, found if experts.before else own * found)
        y = self._linear(at + "widen", y) if experts.narrow else y
        if not experts.shared:
            return y
        inner = self._inner(block, lambda part: self._linear(f"{at}shared_{part}", x))
        shared = self._linear(at + "shared_down", inner)
        if experts.gated_share:
            shared = self._linear(at + "shared_router", x).sigmoid() * shared
        return y + shared

    def _note_visits(self, rows: torch.Tensor, weights: torch.Tensor) -> None:
        """Take notice of what experts may read [T, K], and of their weights [T, E]."""

    def inner_of(self, index: int, block: ExpertMLP, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Return what an expert has for x before its last matrix."""
        at, rows = f"layers.{index}.expert_", block.experts.inner
        return self._inner(block, lambda part: self.expert(at + part, expert, rows, x))

    def _inner(self, block: ExpertMLP, product: Callable[[str], torch.Tensor]) -> torch.Tensor:
        if block.experts.gated:
            return gated(block.activation, product("gate"), product("up"))
        return ACTIVATIONS[block.activation](product("up"))

    def _routes(
        self, index: int, block: ExpertMLP, x: torch.Tensor, stream: torch.Tensor
    ) -> torch.Tensor:
        """Return the weights of all experts for each row of x, 0 for those it does not reach."""
        at, experts = f"layers.{index}.", block.experts
        bias = self._tensor(at + "choice") if experts.biased else None
        if experts.with_dense:
            x = self._norm(at + "router_norm", stream) * block.width**-0.5
        weights = route(self._linear(at + "router", x), experts, bias)
        return weights * self._tensor(at + "factors") if experts.factored else weights
