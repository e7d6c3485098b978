"""OLMo 2 and 3 (norms of the outputs of blocks) and OLMoE: norms of all heads' queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.families.mixtral import SILENT
from suffice.decoder.families.qwen import QK_NORMS
from suffice.decoder.fields import (
    activation,
    head_size,
    layers_by_kind,
    read_fields,
    under_own_name,
)
from suffice.decoder.rope_fields import ROPE_DEFAULTS, layer_ropes, read_rope
from suffice.decoder.routing import Experts

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
MOE_DEFAULTS: Mapping[str, Any] = {
    **{name: default for name, default in DEFAULTS.items() if name != "head_dim"},
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "max_position_embeddings": 4096,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
}
MOE_ONLY = {"clip_qkv": (None,)}
_EXPERT = "model.layers.{i}.mlp.experts.{e}."
_MOE_WEIGHTS = {
    **WEIGHTS,
    **QK_NORMS,
    "layers.router": "model.layers.{i}.mlp.gate",
    "layers.expert_gate": _EXPERT + "gate_proj",
    "layers.expert_up": _EXPERT + "up_proj",
    "layers.expert_down": _EXPERT + "down_proj",
}
OLMO3_DEFAULTS: Mapping[str, Any] = {
    **{name: default for name, default in DEFAULTS.items() if name != "head_dim"},
    "rope_theta": 500_000.0,
    "sliding_window": 4096,
    "layer_types": None,  # all slide but every fourth
}
_ROPE_KINDS = ("default", "linear", "llama3", "yarn")
OUTPUT_NORMS = {
    **{name: stored for name, stored in WEIGHTS.items() if not name.endswith("norm")},
    "final_norm": "model.norm",
    **QK_NORMS,
    "layers.post_attn_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.post_mlp_norm": "model.layers.{i}.post_feedforward_layernorm",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    return replace(_config(read_fields(raw, DEFAULTS)), placement="output")


def _read_moe(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "num_experts", "num_local_experts")
    fields = read_fields(raw, MOE_DEFAULTS, only=MOE_ONLY, silent=SILENT)
    experts = Experts(
        fields["num_experts"],
        fields["num_experts_per_tok"],
        fields["intermediate_size"],
        ("softmax", "top", *(("normalize",) if fields["norm_topk_prob"] else ())),
    )
    return replace(_config(fields), experts=experts)


def _read_olmo3(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, OLMO3_DEFAULTS, ("sliding_window",))
    thetas = dict.fromkeys(("sliding_attention", "full_attention"), fields["rope_theta"])
    ropes = layer_ropes(fields, thetas, _ROPE_KINDS)
    return replace(
        _config({**fields, **ROPE_DEFAULTS}),
        placement="output",
        layers=layers_by_kind(
            fields,
            lambda index: bool((index + 1) % 4),
            sliding=LayerConfig(fields["sliding_window"], rope=0),
            full=LayerConfig(None, rope=1),
        ),
        ropes=(ropes["sliding_attention"], ropes["full_attention"]),
    )


def _config(fields: Mapping[str, Any]) -> DecoderConfig:
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        qk_norm=True,
        whole_qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


OLMOE = Family("olmoe", _read_moe, _MOE_WEIGHTS)
OLMO2 = Family("olmo2", _read, OUTPUT_NORMS)
OLMO3 = Family("olmo3", _read_olmo3, OUTPUT_NORMS)
