"""Kimi Linear: latent attention without positions among layers whose states decay by entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.bamba import MAMBA_CALLED
from suffice.decoder.families.deepseek import (
    LATENT_CALLED,
    LATENT_DEFAULTS,
    LATENT_WEIGHTS,
    NULLABLE,
    latent_sizes,
    read_latent,
    sigmoid_experts,
)
from suffice.decoder.families.mixtral import SILENT as SILENT_OF_EXPERTS
from suffice.decoder.families.qwen_next import apart_weights, delta_rule
from suffice.decoder.fields import layers_of_kinds, read_fields, under_own_name
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import ROPE_DEFAULTS
from suffice.decoder.rotation import Rope
from suffice.decoder.states import Recurrence
from suffice.errors import InputError, brief

DEFAULTS: Mapping[str, Any] = {
    **{name: each for name, each in LATENT_DEFAULTS.items() if name not in ROPE_DEFAULTS},
    "vocab_size": 163840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-5,
    "q_lora_rank": None,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1024,
    "routed_scaling_factor": 2.446,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "mlp_layer_types": None,  # all but the first sparse
    "layer_types": None,  # attention in every fourth layer after the first
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
}
_OTHERS = {  # names in files
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
_OF_STATES = {
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_heads",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
ONLY: Mapping[str, tuple[Any, ...]] = {
    "mla_use_nope": (True,),
    "moe_layer_freq": (1,),
    "moe_router_activation_func": ("sigmoid",),
    "num_nextn_predict_layers": (0,),
}
SILENT = SILENT_OF_EXPERTS | {
    *("first_k_dense_replace", "rope_parameters", "rope_scaling", "rope_theta", "use_grouped_topk"),
}
_ATTENTION = "model.layers.{i}.self_attn."
_EXPERT = "model.layers.{i}.mlp.experts.{e}."
_WEIGHTS: Templates = {
    **LATENT_WEIGHTS,
    "layers.expert_gate": _EXPERT + "w1",
    "layers.expert_up": _EXPERT + "w3",
    "layers.expert_down": _EXPERT + "w2",
    **apart_weights(_ATTENTION),
    "layers.mix_queries": _ATTENTION + "q_b_proj",  # as the latent queries are called
    "layers.decay_low": _ATTENTION + "f_a_proj",
    "layers.decay": _ATTENTION + "f_b_proj",
    "layers.gate_low": _ATTENTION + "g_a_proj",
    "layers.gate_up": _ATTENTION + "g_b_proj",
    **stored_together(_ATTENTION + "A_log", "rates", dims=(1, 1, -1, 1)),
}
_CALLED = (
    (r"(.*\.)block_sparse_moe\.gate\.e_score_correction_bias", r"\1mlp.gate.choice.weight"),
    (r"(.*\.)block_sparse_moe(\..*)", r"\1mlp\2"),
    *MAMBA_CALLED,
    *LATENT_CALLED,
)
_KINDS = {
    "full_attention": LayerConfig(rope=None),
    "linear_attention": LayerConfig(rope=None, mixer="state"),
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    for own, other in _OTHERS.items():
        raw = under_own_name(raw, own, other)
    fields = read_fields(_flat(raw), DEFAULTS, (*NULLABLE, "topk_group"), ONLY, SILENT)
    count = fields["num_hidden_layers"]
    layers = layers_of_kinds(
        fields,
        lambda index: "full_attention" if index and index % 4 == 0 else "linear_attention",
        _KINDS,
    )
    mlps = fields["mlp_layer_types"] or ["dense", *["sparse"] * (count - 1)]
    if not isinstance(mlps, list) or len(mlps) != count or set(mlps) - {"dense", "sparse"}:
        raise InputError(
            f"config field 'mlp_layer_types' = {brief(mlps)} must be 'dense' or 'sparse' for each "
            f"of {count} layers"
        )
    latent = read_latent(fields, adjacent=False)
    shared = latent_sizes(fields, latent, Rope("default", 10_000.0))
    return DecoderConfig(
        **shared | {"ropes": ()},
        layers=tuple(
            replace(each, dense=kind == "dense") for each, kind in zip(layers, mlps, strict=True)
        ),
        experts=sigmoid_experts({**fields, "n_routed_experts": fields["num_local_experts"]}),
        state=_state(fields),
    )


def _flat(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without the object of layers with states that files may have."""
    inner = raw.get("linear_attn_config")
    found = {name: value for name, value in raw.items() if name != "linear_attn_config"}
    if not isinstance(inner, Mapping):
        return found
    found |= {own: inner[name] for own, name in _OF_STATES.items() if name in inner}
    count = raw.get("num_hidden_layers")
    if not (isinstance(count, int) and 0 < count <= 1024):
        return found  # which is refused later
    attends, dense = inner.get("full_attn_layers"), raw.get("first_k_dense_replace", 1)
    if isinstance(attends, list):
        kinds = [
            "full_attention" if at + 1 in attends else "linear_attention" for at in range(count)
        ]
        found.setdefault("layer_types", kinds)
    if isinstance(dense, int):
        found.setdefault(
            "mlp_layer_types", ["dense" if at < dense else "sparse" for at in range(count)]
        )
    return found


def _state(fields: Mapping[str, Any]) -> Recurrence:
    heads, size = fields["linear_num_heads"], fields["linear_head_dim"]
    return delta_rule(
        fields,
        (heads, heads),
        (size, size),
        fields["rms_norm_eps"],
        gate_activation="logistic",
        apart=True,
        by_entry=True,
        low=size,
    )


KIMI = Family("kimi_linear", _read, _WEIGHTS, changes={"rates": np.exp}, called=_CALLED)
