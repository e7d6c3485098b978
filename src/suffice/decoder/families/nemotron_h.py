"""Nemotron-H: each layer is a Mamba-2, attention without positions, an MLP, or experts.

MLPs and experts are without gates; experts are chosen as DeepSeek V3 chooses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.bamba import (
    MAMBA_CALLED,
    MAMBA_CHANGES,
    MAMBA_ONLY,
    mamba_state,
    mamba_weights,
)
from suffice.decoder.families.deepseek import sigmoid_experts
from suffice.decoder.families.llama import sizes
from suffice.decoder.fields import activation, layers_of_kinds, read_fields, under_own_name
from suffice.decoder.name_maps import Templates
from suffice.decoder.routing import Experts
from suffice.errors import InputError, brief

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "layers_block_type": None,  # or `hybrid_override_pattern`, a letter for each layer
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "mamba_proj_bias": False,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "use_bias": False,
    "time_step_min": 0.001,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_latent_size": None,  # what experts read; null: whole rows
    "moe_shared_expert_intermediate_size": 7688,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
}
ONLY: Mapping[str, tuple[Any, ...]] = {
    **MAMBA_ONLY,
    "attention_bias": (False,),
    "mamba_hidden_act": ("silu",),
}
SILENT = {
    *("chunk_size", "expand", "hidden_dropout", "mamba_ssm_cache_dtype", "mtp_layers_block_type"),
    *("num_hidden_layers", "num_logits_to_keep", "num_nextn_predict_layers", "time_step_floor"),
    *("rescale_prenorm_residual", "residual_in_fp32", "time_step_max", "use_mamba_kernels"),
    *("moe_shared_expert_overlap", "n_shared_experts", "output_router_logits", "sliding_window"),
}
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_LAYER = "backbone.layers.{i}."
_MIXER = _LAYER + "mixer."
_WEIGHTS: Templates = {
    "embed": "backbone.embeddings",
    "final_norm": "backbone.norm_f",
    "head": "lm_head",
    "layers.attn_norm": _LAYER + "norm",
    "layers.mlp_norm": _LAYER + "norm",
    **{f"layers.{part}": f"{_MIXER}{part}_proj" for part in ("q", "k", "v", "o", "up", "down")},
    "layers.narrow": _MIXER + "fc1_latent_proj",
    "layers.widen": _MIXER + "fc2_latent_proj",
    "layers.router": _MIXER + "gate",
    "layers.choice": _MIXER + "gate.choice",
    **{f"layers.expert_{part}": f"{_MIXER}experts.{{e}}.{part}_proj" for part in ("up", "down")},
    **{f"layers.shared_{part}": f"{_MIXER}shared_experts.{part}_proj" for part in ("up", "down")},
    **mamba_weights(_MIXER),
}
_KINDS = {
    "full_attention": LayerConfig(rope=None, mlp=False),
    "linear_attention": LayerConfig(mixer="state", rope=None, mlp=False),
    "mlp": LayerConfig(mixer="none", rope=None, dense=True),
    "moe": LayerConfig(mixer="none", rope=None),
}
_OF_MAMBA = {
    "mamba_n_heads": "mamba_num_heads",
    "mamba_d_head": "mamba_head_dim",
    "mamba_d_state": "ssm_state_size",
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "rms_norm_eps": "layer_norm_epsilon",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(_with_kinds(raw), "layers_block_type", "layer_types")
    fields = read_fields(raw, DEFAULTS, only=ONLY, silent=SILENT)
    kinds = fields["layers_block_type"]
    count = len(kinds) if isinstance(kinds, list) else 0
    fields = {**fields, **{name: fields[own] for name, own in _OF_MAMBA.items()}}
    fields |= {"layer_types": kinds, "num_hidden_layers": count, "mamba_expand": None}
    mixes = isinstance(kinds, list) and "moe" in kinds
    of_experts = ("shared_up", "shared_down", "narrow", "widen")
    biased = ("up", "down", *(of_experts if mixes else ()))
    mlp = biased if fields["mlp_bias"] else ()
    inner = ("out_gate", "mixed", "decay") if fields["mamba_proj_bias"] else ()
    out = ("mix_out",) if fields["use_bias"] else ()
    return DecoderConfig(
        **sizes(fields, fields["head_dim"]) | {"gated": False},
        layers=layers_of_kinds(fields, lambda index: "", _KINDS),
        activation=activation(fields, "mlp_hidden_act"),
        biases=frozenset((*mlp, *inner, *out)),
        state=mamba_state(fields, least_step=fields["time_step_min"]),
        experts=_experts(fields) if mixes else None,
    )


def _experts(fields: Mapping[str, Any]) -> Experts:
    found = sigmoid_experts({**fields, "n_shared_experts": 1})
    return replace(
        found,
        shared=fields["moe_shared_expert_intermediate_size"],
        gated=False,
        narrow=fields["moe_latent_size"] or 0,
    )


def _with_kinds(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with a list of layers instead of letters."""
    pattern = raw.get("hybrid_override_pattern")
    if pattern is None:
        return raw
    if not isinstance(pattern, str) or set(pattern) - {*_LETTERS}:
        raise InputError(
            f"config field 'hybrid_override_pattern' = {brief(pattern)} must be of the letters "
            f"{', '.join(_LETTERS)}"
        )
    found = {name: value for name, value in raw.items() if name != "hybrid_override_pattern"}
    return {"layers_block_type": [_LETTERS[letter] for letter in pattern], **found}


NEMOTRON_H = Family(
    "nemotron_h",
    _read,
    _WEIGHTS,
    changes=MAMBA_CHANGES,
    surplus=(r"mtp\..*",),
    base="backbone.",
    called=(*MAMBA_CALLED, (r"(.*\.gate)\.e_score_correction_bias", r"\1.choice.weight")),
)
