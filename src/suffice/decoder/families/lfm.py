"""LFM2, dense and with experts: layers of attention among layers of short convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.checks import check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import sizes
from suffice.decoder.families.mixtral import SILENT as SILENT_OF_EXPERTS
from suffice.decoder.fields import (
    head_size,
    layers_of_kinds,
    read_fields,
    some_layers,
    under_own_name,
)
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.routing import Experts
from suffice.decoder.states import Convolution

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 1_000_000.0,
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "conv_bias": False,
    "conv_L_cache": 3,
    "layer_types": None,  # attention in `full_attn_idxs`, or everywhere
    "full_attn_idxs": None,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
}
_OF_DENSE = ("full_attn_idxs", *(name for name in DEFAULTS if name.startswith("block_")))
MOE_DEFAULTS: Mapping[str, Any] = {
    **{name: each for name, each in DEFAULTS.items() if name not in _OF_DENSE},
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "use_expert_bias": True,
}
SILENT = {
    *("block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale"),
    *("block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out"),
    *("conv_use_xavier_init", "num_heads", "theta", "use_pos_enc"),
}
_LAYER = "model.layers.{i}."
WEIGHTS = {
    "embed": "model.embed_tokens",
    "final_norm": "model.embedding_norm",
    "head": "lm_head",
    "layers.attn_norm": _LAYER + "operator_norm",
    "layers.q": _LAYER + "self_attn.q_proj",
    "layers.k": _LAYER + "self_attn.k_proj",
    "layers.v": _LAYER + "self_attn.v_proj",
    "layers.o": _LAYER + "self_attn.out_proj",
    "layers.q_norm": _LAYER + "self_attn.q_layernorm",
    "layers.k_norm": _LAYER + "self_attn.k_layernorm",
    "layers.mixed": _LAYER + "conv.in_proj",
    "layers.convolution": _LAYER + "conv.conv",
    "layers.mix_out": _LAYER + "conv.out_proj",
    "layers.mlp_norm": _LAYER + "ffn_norm",
    "layers.gate": _LAYER + "feed_forward.w1",
    "layers.up": _LAYER + "feed_forward.w3",
    "layers.down": _LAYER + "feed_forward.w2",
}
_MOE = _LAYER + "feed_forward."
_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}
_MOE_WEIGHTS = {
    **WEIGHTS,
    "layers.router": _MOE + "gate",
    "layers.choice": _MOE + "expert_bias",
    **{f"layers.expert_{part}": f"{_MOE}experts.{{e}}.{own}" for part, own in _PARTS.items()},
}
_CALLED = ((r"(.*\.expert_bias)", r"\1.weight"),)


def _read(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "intermediate_size", "block_ff_dim")
    raw = under_own_name(raw, "tie_word_embeddings", "tie_embedding")
    fields = read_fields(raw, DEFAULTS, silent=SILENT)
    return _config({**fields, "intermediate_size": _inner(fields)})


def _read_moe(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, MOE_DEFAULTS, silent=SILENT_OF_EXPERTS)
    found = _config({**fields, "full_attn_idxs": None})
    dense = fields["num_dense_layers"]
    check_size("num_dense_layers", dense + 1)
    experts = Experts(
        fields["num_experts"],
        fields["num_experts_per_tok"],
        fields["moe_intermediate_size"],
        ("sigmoid", "top", *(("normalize",) if fields["norm_topk_prob"] else ())),
        scale=fields["routed_scaling_factor"],
        biased=fields["use_expert_bias"],
    )
    layers = tuple(replace(each, dense=at < dense) for at, each in enumerate(found.layers))
    return replace(found, layers=layers, experts=experts)


def _inner(fields: Mapping[str, Any]) -> int:
    """Return the width of the MLPs: two thirds of the stated one, up to a multiple."""
    inner: int = fields["intermediate_size"]
    if not fields["block_auto_adjust_ff_dim"]:
        return inner
    multiple: int = fields["block_multiple_of"]
    inner = int(fields["block_ffn_dim_multiplier"] * int(2 * inner / 3))
    return -(-inner // multiple) * multiple


def _config(fields: Mapping[str, Any]) -> DecoderConfig:
    width, attends = fields["hidden_size"], some_layers(fields, "full_attn_idxs")
    biases = ("mixed", "mix_out") if fields["conv_bias"] else ()
    return DecoderConfig(
        **sizes({**fields, "rms_norm_eps": fields["norm_eps"]}, head_size(fields)),
        layers=layers_of_kinds(
            fields,
            lambda index: "full_attention" if attends is None or index in attends else "conv",
            {"full_attention": LayerConfig(), "conv": LayerConfig(mixer="state")},
        ),
        activation="silu",
        ropes=(read_rope(fields),),
        qk_norm=True,
        biases=frozenset(biases),
        state=Convolution(width, fields["conv_L_cache"], fields["conv_bias"]),
    )


LFM2 = Family("lfm2", _read, WEIGHTS)
LFM2_MOE = Family("lfm2_moe", _read_moe, _MOE_WEIGHTS, called=_CALLED)
