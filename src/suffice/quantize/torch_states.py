"""Blocks with states in PyTorch, token by token, as their equations say.

With S the matrix of a head, decays a, a key k, a value v, a query q and a strength b:

    S_t = diag(a_t) S_{t-1} + k_t u_t^T,   o_t = S_t^T q_t

    u_t = v_t                                     Mamba-2, where v is multiplied by its step
    u_t = b_t (v_t - (diag(a_t) S_{t-1})^T k_t)   the gated delta rule, where |k| = 1

Sources: Dao and Gu 2024, Transformers are SSMs, eq. 16 with the scalar a; Yang et al. 2024, Gated
Delta Networks, eq. 10; Kimi Team 2025, Kimi Linear, eq. 1, where a has an entry for each of k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from suffice.decoder.states import Convolution, Recurrence, StateBlock
from suffice.quantize.torch_layers import ACTIVATIONS, rms_norm

Tensors = Mapping[str, torch.Tensor]
_GATES = {**ACTIVATIONS, "logistic": torch.sigmoid}
MADE_OF = {"decay": "decay_low", "gate_up": "gate_low"}  # where these are
_EPS = 1e-6  # of the lengths of keys and queries


@dataclass
class TorchState:
    """A layer's state: past inputs [taps - 1, C] and, of a recurrence, matrices [H, K, V]."""

    inputs: torch.Tensor
    matrices: torch.Tensor | None

    @classmethod
    def empty(cls, block: StateBlock, like: torch.Tensor) -> TorchState:
        """Return the state before the first token."""
        if isinstance(block, Convolution):
            return cls(like.new_zeros(block.taps - 1, block.width), None)
        matrices = like.new_zeros(block.heads, block.key_size, block.value_size)
        return cls(like.new_zeros(block.taps - 1, block.channels), matrices)

    def convolved(self, x: torch.Tensor, by: Tensors) -> torch.Tensor:
        """Return each channel of x [T, C] convolved with its last inputs, which it becomes."""
        weights, count = by["convolution"], len(x)
        inputs = torch.cat((self.inputs, x))
        taps = weights.shape[-1]
        found = sum(inputs[at : at + count] * weights[:, 0, at] for at in range(taps))
        assert isinstance(found, torch.Tensor)
        self.inputs = inputs[len(inputs) - taps + 1 :]
        return found + by["convolution.bias"] if "convolution.bias" in by else found


def short_convolution(
    block: Convolution, mixed: torch.Tensor, by: Tensors, state: TorchState
) -> torch.Tensor:
    """Return what `mix_out` gets, [T, M], from what `mixed` gave, [T, 3 M]."""
    before, after, x = torch.split(mixed, block.width, dim=-1)
    return after * state.convolved(before * x, by)


def recurrence(block: Recurrence, given: Tensors, by: Tensors, state: TorchState) -> torch.Tensor:
    """Return what `mix_out` gets, [T, H V], from what the other matrices gave."""
    parts = [given["mixed"]] if "mixed" in given else [given[f"mix_{part}"] for part in block.order]
    if block.apart:
        filters = [by[f"{part}_convolution"] for part in block.order]
        by = {**by, "convolution": torch.cat(filters)}
    counts, scales = zip(*block.channel_scales, strict=True)
    scale = torch.tensor(scales).repeat_interleave(torch.tensor(counts)).to(parts[0].device)
    x = ACTIVATIONS["silu"](state.convolved(scale * torch.cat(parts, dim=-1), by))
    count, group = len(x), block.heads // block.key_heads
    of = torch.arange(block.heads)
    of = of % block.key_heads if block.tiled else of // group
    q, k = (
        x[:, block.place(part) :][:, : block.key_heads * block.key_size].view(
            count, block.key_heads, block.key_size
        )[:, of]
        for part in ("queries", "keys")
    )
    v = x[:, block.place("values") :][:, : block.heads * block.value_size]
    v = v.reshape(count, block.heads, block.value_size)
    steps = functional.softplus(block.decay_scale * given["decay"] + by["step_bias"])
    steps = steps.clamp(min=block.least_step)
    steps = steps.view(count, block.heads, -1)
    decays = torch.exp(-by["rates"].view(block.heads, -1) * steps)
    strength = None
    skipped = by["skips"][:, None] * v if block.skips else 0.0
    if block.corrects:
        q, k = _unit(q) / block.key_size**0.5, _unit(k)
        strength = block.most_strength * torch.sigmoid(given["strength"])
    else:
        v = v * steps
    out = _run(q, k, v, decays, strength, state) + skipped
    return _gated(block, out.reshape(count, -1), given["gate_up" if block.low else "out_gate"], by)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decays: torch.Tensor,
    strength: torch.Tensor | None,
    state: TorchState,
) -> torch.Tensor:
    """Return outputs [T, H, V] of queries and keys [T, H, K], and change the state's matrices."""
    s, found = state.matrices, []
    assert s is not None
    for t in range(len(q)):
        s = decays[t][..., None] * s
        u = v[t]
        if strength is not None:
            u = strength[t][:, None] * (u - torch.einsum("hkv,hk->hv", s, k[t]))
        s = s + k[t][..., None] * u[:, None]
        found.append(torch.einsum("hkv,hk->hv", s, q[t]))
    state.matrices = s
    return torch.stack(found)


def _gated(block: Recurrence, out: torch.Tensor, gates: torch.Tensor, by: Tensors) -> torch.Tensor:
    """Return outputs [T, H V] with their norm and gates."""
    gates = _GATES[block.gate_activation](block.gate_scale * gates)
    if not block.norm_size:
        return out * gates
    if block.gates_first:
        out = out * gates
    groups = out.view(len(out), -1, block.norm_size)
    weight = by["mix_norm"].view(-1, block.norm_size)
    out = rms_norm(groups, weight, block.norm_eps).view(out.shape)
    return out if block.gates_first else out * gates
