"""Qwen2-MoE (an expert that all rows share) and Qwen3-MoE; single layers may be dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import SURPLUS, WEIGHTS, sizes
from suffice.decoder.families.mixtral import SILENT as SILENT_OF_EXPERTS
from suffice.decoder.families.qwen import QK_NORMS
from suffice.decoder.fields import (
    activation,
    head_size,
    layers_by_kind,
    layers_with_experts,
    read_fields,
    under_own_name,
)
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.routing import Experts

_DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,  # 2: every second layer has experts
    "mlp_only_layers": None,  # layers without
    "norm_topk_prob": False,
}
QWEN2_DEFAULTS: Mapping[str, Any] = {
    **_DEFAULTS,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_window_layers": 28,
    "layer_types": None,  # every second one before max_window_layers slides, if use_sliding_window
    "qkv_bias": True,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
}
QWEN3_DEFAULTS: Mapping[str, Any] = {
    **_DEFAULTS,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
SILENT = SILENT_OF_EXPERTS | {"max_window_layers"}  # in published files of Qwen3, and not read
_EXPERT = "model.layers.{i}.mlp.experts.{e}."
_SHARED = "model.layers.{i}.mlp.shared_expert"
_QWEN3_WEIGHTS = {
    **WEIGHTS,
    **QK_NORMS,
    "layers.router": "model.layers.{i}.mlp.gate",
    "layers.expert_gate": _EXPERT + "gate_proj",
    "layers.expert_up": _EXPERT + "up_proj",
    "layers.expert_down": _EXPERT + "down_proj",
}
_QWEN2_WEIGHTS = {
    **_QWEN3_WEIGHTS,
    "layers.shared_gate": _SHARED + ".gate_proj",
    "layers.shared_up": _SHARED + ".up_proj",
    "layers.shared_down": _SHARED + ".down_proj",
    "layers.shared_router": _SHARED + "_gate",
}


def experts(fields: Mapping[str, Any], shared: int = 0) -> Experts:
    """Return the experts of a layer, with one of `shared` inner values for all rows."""
    return Experts(
        fields["num_experts"],
        fields["num_experts_per_tok"],
        fields["moe_intermediate_size"],
        ("softmax", "top", *(("normalize",) if fields["norm_topk_prob"] else ())),
        shared=shared,
        gated_share=bool(shared),
    )


def _read_qwen2(raw: dict[str, Any]) -> DecoderConfig:
    if raw.get("sliding_window") == 0 and not raw.get("use_sliding_window"):
        raw = raw | {"sliding_window": None}  # transformers writes 0
    fields = read_fields(raw, QWEN2_DEFAULTS, ("sliding_window",), silent=SILENT)
    window = fields["sliding_window"] if fields["use_sliding_window"] else None
    layers = layers_by_kind(
        fields,
        lambda index: window is not None and index % 2 == 0 and index < fields["max_window_layers"],
        sliding=LayerConfig(window),
        full=LayerConfig(),
    )
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=layers_with_experts(fields, layers),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        biases=frozenset("qkv" if fields["qkv_bias"] else ""),
        experts=experts(fields, fields["shared_expert_intermediate_size"]),
    )


def _read_qwen3(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "num_experts", "num_local_experts")
    fields = read_fields(raw, QWEN3_DEFAULTS, ("sliding_window",), silent=SILENT)
    window = fields["sliding_window"] if fields["use_sliding_window"] else None
    layers = [LayerConfig(window)] * fields["num_hidden_layers"]
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=layers_with_experts(fields, layers),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
        experts=experts(fields),
    )


QWEN2_MOE = Family("qwen2_moe", _read_qwen2, _QWEN2_WEIGHTS, surplus=SURPLUS)
QWEN3_MOE = Family("qwen3_moe", _read_qwen3, _QWEN3_WEIGHTS, surplus=SURPLUS)
