"""Sensitivity of a model to each matrix's output for each token: its Fisher information.

    weight[t] = mean over n of (d log p / d y[t, n])^2

y [T, N] are a matrix's outputs for a window of tokens, p the probability of tokens sampled from the
model's own distribution after each of them. To second order, an error of y changes that
distribution (in KL divergence) by the squared error with these weights, if the error is alike for
all outputs n. Of an activation site the gradient d log p / d x [T, K] itself can be kept, for the
tokens that are sampled for its codebook: its squares weigh the errors of single activations.

The gradient is computed one layer at a time, from the last to the first, each run again from its
input. In memory are one hidden state per layer of a window, and the intermediate values of one
layer.

Source   Fisher information as weight of errors: KLLM, section III-A; per token, within E[x x^T]:
         this project, see `layerwise`.
Cost     about three passes over each window.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from suffice.decoder.pages import trim_heap
from suffice.decoder.weights import DecoderWeights
from suffice.quant.sites import SITE_OF, SITES
from suffice.quantize.layerwise import GRADIENT, Layerwise, sampled
from suffice.quantize.torch_layers import capped, dense_blocks, linear

ROWS = 128  # of logits that exist at a time
ELEMENTS = 1 << 22  # of the head, unpacked at a time
TRIMMED = 8  # layers after which freed memory is returned to the system

TokenWeights = dict[str, torch.Tensor]  # float32 [T] by matrix, such as `layers.0.q`


class Sensitivity(Layerwise):
    """Computes the weights of the tokens of windows.

    With `sites` it also keeps `gradients` [T, K] of the last window, by site such as `layers.0.qkv`
    with `GRADIENT` behind, at the tokens that `sampled` chooses.
    """

    _found: TokenWeights

    def __init__(
        self, decoder: DecoderWeights, windows: Sequence[Sequence[int]], *, sites: bool = False
    ) -> None:
        super().__init__(decoder, windows)
        self._sites = sites
        self.gradients: dict[str, torch.Tensor] = {}

    def of(self, window: int) -> TokenWeights:
        """Return the weights of a window's tokens; its number is the seed of the sampling.

        They and the gradients are on the host, where the sampling is, too.
        """
        self._found, self.gradients = {}, {}
        self._generator = torch.Generator().manual_seed(window)
        self._pass(window)
        return self._found

    def _pass(self, window: int) -> None:
        states = [self._states[window]]
        layers = range(len(self.config.layers))
        with torch.no_grad():
            for index in layers:
                states.append(self._run(index, states[-1], window))
        gradient, of_rows = self._of_logits(states.pop()), dict[int, list[torch.Tensor]]()
        for index in reversed(layers):
            x = states.pop().detach().requires_grad_()
            owner = self.config.layers[index].shares
            read = [] if owner is None else self._read_apart(owner)
            outputs = [self._run(index, x, window), *self._stored.get(index, ())]
            torch.autograd.backward(outputs, [gradient, *of_rows.pop(index, ())])
            assert x.grad is not None
            gradient = x.grad
            if owner is not None:
                found = [torch.zeros_like(k) if k.grad is None else k.grad for k in read]
                before = of_rows.get(owner)
                of_rows[owner] = found if before is None else list(map(torch.add, before, found))
            if index % TRIMMED == 0:
                trim_heap()
        self._stored.clear()  # their graphs hold this object, by the hooks

    def _read_apart(self, owner: int) -> list[torch.Tensor]:
        """Have the keys and values of a layer read as inputs that get gradients; return them."""
        k, v = (rows.detach().requires_grad_() for rows in self._stored[owner])
        self._stored[owner] = k, v
        return [k, v]

    def _of_logits(self, state: torch.Tensor) -> torch.Tensor:
        """Return d log p / d x of the last hidden states x [T, M]."""
        parts = []
        for at in range(0, len(state), ROWS):
            x = state[at : at + ROWS].detach().requires_grad_()
            last = self._last(x)
            torch.autograd.backward(last, self._of_sampled(last.detach()))
            assert x.grad is not None
            parts.append(x.grad)
        return torch.cat(parts)

    @torch.no_grad()
    def _of_sampled(self, last: torch.Tensor) -> torch.Tensor:
        """Return d log p / d y of the head's inputs y [T, M], W its matrix: s (one-hot - p) W.

        s is the scale of logits, and times their slope where they are capped.
        """
        head = self.matrix(self._head)
        scale = self.config.logit_scale
        p = linear(last, head, self.dtype, ELEMENTS)
        p *= scale
        cap = self.config.logit_cap
        slope = 1 - torch.tanh(p / cap).square() if cap else None
        p = capped(p, cap)
        p -= p.amax(-1, keepdim=True)
        p.exp_()
        p /= p.sum(-1, keepdim=True)
        sampled = torch.multinomial(p.cpu(), 1, generator=self._generator).to(p.device)
        p.neg_().scatter_add_(1, sampled, torch.ones_like(sampled, dtype=p.dtype))
        if slope is not None:
            p *= slope
        found, row = torch.zeros_like(last), 0
        for block in dense_blocks(head, p.device, ELEMENTS):
            found.addmm_(p[:, row : row + len(block)], block, alpha=scale)
            row += len(block)
        return found

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = super()._linear(name, x)
        if y.requires_grad and name.startswith("layers."):
            y.register_hook(partial(self._take, name))  # type: ignore[no-untyped-call]
            layer, _, matrix = name.rpartition(".")
            site = SITE_OF.get(matrix)
            own = [each for each in SITES.get(site or "", ()) if f"{layer}.{each}" in self.weights]
            if self._sites and own and matrix == own[-1]:
                keep = partial(self._keep, f"{layer}.{site}{GRADIENT}")
                x.register_hook(keep)  # type: ignore[no-untyped-call]
        return y

    def _keep(self, name: str, gradient: torch.Tensor) -> None:
        self.gradients[name] = sampled(gradient, self._tokens).clone().cpu()

    def _take(self, name: str, gradient: torch.Tensor) -> None:
        self._found[name] = gradient.square().mean(-1).cpu()
