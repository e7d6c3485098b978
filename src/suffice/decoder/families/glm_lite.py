"""GLM-4 MoE Lite (GLM-4.7-Flash): DeepSeek V3's attention and experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.deepseek import (
    LATENT_DEFAULTS,
    LATENT_WEIGHTS,
    MOE_CALLED,
    SILENT,
    V3_ONLY,
    latent_sizes,
    read_latent,
    sigmoid_experts,
)
from suffice.decoder.fields import read_fields, under_own_name
from suffice.decoder.rope_fields import read_rope
from suffice.errors import InputError, brief

DEFAULTS: Mapping[str, Any] = {
    **LATENT_DEFAULTS,
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.8,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "norm_topk_prob": True,
    "rope_interleave": True,
    "mlp_layer_types": None,  # the first is dense
}
ONLY = V3_ONLY | {"first_k_dense_replace": (1,)}  # as in published files; the kinds rule
_KINDS = ("dense", "sparse")


def _layers(fields: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    """Return the layers, those dense that `mlp_layer_types` says.

    Raises:
        InputError: It is no list of a kind for each layer.
    """
    count, kinds = fields["num_hidden_layers"], fields["mlp_layer_types"]
    if kinds is None:
        kinds = ["dense", *["sparse"] * (count - 1)]
    if not isinstance(kinds, list) or len(kinds) != count or not all(k in _KINDS for k in kinds):
        raise InputError(
            f"config field 'mlp_layer_types' = {brief(kinds)} must be a list of {count} of "
            f"{', '.join(_KINDS)}"
        )
    return tuple(LayerConfig(dense=kind == "dense") for kind in kinds)


def _read(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "n_routed_experts", "num_local_experts")
    fields = read_fields(raw, DEFAULTS, ("q_lora_rank",), ONLY, SILENT)
    latent = read_latent(fields, adjacent=fields["rope_interleave"])
    rope = read_rope(fields)
    return DecoderConfig(
        **latent_sizes(fields, latent, rope),
        layers=_layers(fields),
        experts=sigmoid_experts(fields),
    )


GLM4_MOE_LITE = Family("glm4_moe_lite", _read, LATENT_WEIGHTS, called=MOE_CALLED, predicts=True)
