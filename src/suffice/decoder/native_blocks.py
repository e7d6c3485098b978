"""The blocks of layers, as the native core takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from suffice.backends.cpu.linear import native_linear
from suffice.decoder.adapter import Adapter
from suffice.decoder.blocks import (
    ACTIVATIONS,
    Attention,
    Block,
    DenseMLP,
    ExpertMLP,
    LatentAttention,
    LayerEmbedding,
)
from suffice.decoder.native_states import add_state_block
from suffice.decoder.routing import STEPS
from suffice.decoder.weights import DecoderWeights
from suffice.native import core
from suffice.quant import PackedLinear


def parts_of(
    block: Block, decoder: DecoderWeights, at: tuple[int, int], adapters: Sequence[Adapter]
) -> dict[str, object]:
    """Return the weights of a block by the core's names; `at`: its layer, and its place there."""
    (layer, place), config = at, decoder.config
    prefix = f"layers.{layer}."
    norms = {name: name for name in block.vectors} | config.norms(block, layer)
    parts = named_parts(decoder, prefix, block.matrices, norms)
    parts |= _adapted(adapters, prefix, block.matrices)
    parts["parallel"] = config.is_parallel(layer, place)
    parts["output_scale"] = config.residual_scale * block.output_scale
    if isinstance(block, Attention) and block.value_norm and block.shares is None:
        parts["v_norm"] = np.ones(block.head_size, np.float32)
    if isinstance(block, ExpertMLP) and block.experts.with_dense:
        norm = decoder.weights[prefix + "router_norm"]
        assert isinstance(norm, np.ndarray)
        parts["router_norm"] = norm * np.float32(block.width**-0.5)
    if isinstance(block, DenseMLP) and block.vectors:
        parts["curve"] = decoder.curve(layer)
    return parts


def add_block(model: core.Model, block: Block, parts: dict[str, object]) -> None:
    """Append a block to the core's last layer."""
    if isinstance(block, Attention | LatentAttention):
        rope = -1 if block.rope is None else block.rope
    if isinstance(block, Attention):
        places = block.whole_norms, block.late_norms
        shares = -1 if block.shares is None else block.shares
        rows = block.kv_heads, block.head_size, shares
        how = block.grows, block.paired, block.mutual
        model.add_attention(parts, *rows, block.window or 0, rope, *places, *how)
        return
    if isinstance(block, LatentAttention):
        latent = block.latent
        sizes = latent.plain, latent.rank, latent.value
        model.add_latent(parts, *sizes, rope, latent.adjacent, latent.norm_eps)
        return
    if not isinstance(block, DenseMLP | ExpertMLP | LayerEmbedding):
        add_state_block(model, block, parts)
        return
    activation = ACTIVATIONS.index(block.activation)
    if isinstance(block, LayerEmbedding):
        model.add_layer_embedding(parts, block.place, activation)
    elif isinstance(block, ExpertMLP):
        experts = block.experts
        steps = [STEPS.index(step) for step in experts.steps]
        sizes = experts.count, experts.inner, experts.shared
        weights = experts.scale, experts.margin, experts.before
        groups = experts.groups, experts.kept_groups
        model.add_experts(parts, *sizes, activation, steps, experts.chosen, *weights, *groups)
    else:
        model.add_mlp(parts, block.inner, activation, block.gate_scale)


def _adapted(
    adapters: Sequence[Adapter], prefix: str, matrices: Iterable[str]
) -> dict[str, object]:
    """Return what adapters add to matrices, by the names that the core has for it."""
    parts: dict[str, object] = {}
    for name in matrices:
        own = [adapter.matrices.get(prefix + name) for adapter in adapters]
        if any(own):
            parts[f"{name}.adapters"] = [
                None if both is None else tuple(map(native_linear, both)) for both in own
            ]
    return parts


def named_parts(
    decoder: DecoderWeights, prefix: str, matrices: Iterable[str], norms: Mapping[str, str]
) -> dict[str, object]:
    """Return matrices by their names, and norms by the names that the core has for them."""
    parts: dict[str, object] = {}
    for name in matrices:
        weight = decoder.weights.get(prefix + name)
        if isinstance(weight, PackedLinear):
            parts[name] = native_linear(weight)
    for to, name in norms.items():
        for suffix in ("", ".bias"):
            vector = decoder.weights.get(prefix + name + suffix)
            if isinstance(vector, np.ndarray):
                parts[to + suffix] = vector
    return parts
