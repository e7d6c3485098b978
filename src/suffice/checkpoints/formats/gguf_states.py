"""The architectures of llama.cpp whose layers keep states; see `gguf_names`.

Its files have a rate where Hugging Face's have a logarithm, and the norms of Qwen's layers have
their 1 added, except those of states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from suffice.checkpoints.formats.gguf_architecture import (
    GATES_AND_VALUES,
    GRANITE,
    INNER,
    LAYER,
    OF_IMAGES,
    RMS,
    SHARED,
    WEIGHTS,
    Architecture,
    Fields,
    experts,
)
from suffice.decoder.families.qwen_next import chosen_rows
from suffice.decoder.name_maps import Templates, stored_together

_STATES: Fields = {
    "ssm.conv_kernel": ("mamba_d_conv", int),
    "ssm.state_size": ("mamba_d_state", int),
    "ssm.group_count": ("mamba_n_groups", int),
    "ssm.time_step_rank": ("mamba_n_heads", int),
    "ssm.inner_size": ("mamba_inner", int),  # of all heads
}
_RATES = {"rates": np.negative}
_OUT: Templates = {
    "layers.convolution": LAYER + "ssm_conv1d",
    "layers.rates": LAYER + "ssm_a",
    "layers.step_bias": LAYER + "ssm_dt.bias",
    "layers.mix_norm": LAYER + "ssm_norm",
    "layers.mix_out": LAYER + "ssm_out",
}
_MAMBA: Templates = {
    **WEIGHTS,
    **_OUT,
    **stored_together(LAYER + "ssm_in", "out_gate", "mixed", "decay"),
    "layers.skips": LAYER + "ssm_d",
}
_BIASED = "blk.*.ssm_conv1d.bias"

_CONVOLUTION: Fields = {**RMS, "shortconv.l_cache": ("conv_L_cache", int)}
_SHORT: Templates = {
    **WEIGHTS,
    "final_norm": "token_embd_norm",
    "layers.mixed": LAYER + "shortconv.in_proj",
    "layers.convolution": LAYER + "shortconv.conv",
    "layers.mix_out": LAYER + "shortconv.out_proj",
}

_DELTA: Fields = {
    **RMS,
    **_STATES,
    "full_attention_interval": ("full_attention_interval", int),
    "nextn_predict_layers": ("num_nextn_predict_layers", int),
}
_OF_DELTA: Mapping[str, str | None] = {
    "mamba_d_conv": "linear_conv_kernel_dim",
    "mamba_d_head": "linear_value_head_dim",
    "mamba_d_state": "linear_key_head_dim",
    "mamba_expand": None,
    "mamba_n_groups": "linear_num_key_heads",
    "mamba_n_heads": "linear_num_value_heads",
    "num_nextn_predict_layers": None,
}
_GATED: Templates = {
    **WEIGHTS,
    **_OUT,
    **stored_together(LAYER + "attn_q", "q", "attn_gate", by_head=True),
    "layers.mlp_norm": LAYER + "post_attention_norm",
    "layers.mixed": LAYER + "attn_qkv",
    "layers.out_gate": LAYER + "attn_gate",
}
_APART: Templates = {
    **_GATED,
    "layers.strength": LAYER + "ssm_beta",
    "layers.decay": LAYER + "ssm_alpha",
}
_BY_GROUP = {  # of the first files
    "blk.*.ssm_in.weight": stored_together(LAYER + "ssm_in", "mixed", "out_gate", rows=chosen_rows)
}
_DELTA_EXPERTS: Fields = {**_DELTA, **experts("num_experts"), **INNER, **SHARED}
_WIDTH = "feed_forward_length"
_NO_DRAFTS = {"nextn_predict_layers": 0}


def _with_width(fields: dict[str, Any]) -> dict[str, Any]:
    """Return Falcon-H1's fields with the width of all heads with states."""
    return {**fields, "mamba_d_ssm": fields["mamba_n_heads"] * fields["mamba_d_head"]}


_OF_NEMOTRON: Mapping[str, str | None] = {
    "layer_types": "layers_block_type",
    "mamba_d_conv": "conv_kernel",
    "mamba_d_head": "mamba_head_dim",
    "mamba_d_state": "ssm_state_size",
    "mamba_expand": None,
    "mamba_n_groups": "n_groups",
    "mamba_n_heads": "mamba_num_heads",
    "rms_norm_eps": "layer_norm_epsilon",
}
_NEMOTRON = Architecture(
    "NemotronHForCausalLM",
    {**RMS, **_STATES},
    {**_MAMBA, "layers.mlp_norm": LAYER + "attn_norm"},
    _OF_NEMOTRON,
    stored={"mlp_bias": "blk.*.ffn_up.bias", "use_conv_bias": _BIASED},
    unread=("attention.layer_norm_epsilon", "rope."),  # it has no positions
    state="linear_attention",
    changes=_RATES,
)

STATEFUL: Mapping[str, Architecture] = {
    "falcon-h1": Architecture(
        "FalconH1ForCausalLM",
        {**RMS, **_STATES},
        _MAMBA,
        {"mamba_expand": None},
        fixed={"mamba_norm_before_gate": False},
        adaptable=False,  # multipliers are in its weights
        stored={
            "mamba_conv_bias": _BIASED,
            "mamba_rms_norm": "blk.*.ssm_norm.weight",
            "mlp_bias": "blk.*.ffn_up.bias",
            "projectors_bias": "blk.*.ssm_out.bias",
        },
        changes=_RATES,
        finished=_with_width,
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM",
        {
            **GRANITE,
            **_STATES,
            **experts("num_local_experts"),
            "expert_shared_feed_forward_length": ("shared_intermediate_size", int),
        },
        _MAMBA,
        lacking={"num_local_experts": 0},
        absent={"expert_count": 0, "expert_used_count": 0},
        paired=True,
        stored={"mamba_conv_bias": _BIASED},
        state="linear_attention",
        changes=_RATES,
    ),
    "lfm2": Architecture(
        "Lfm2ForCausalLM",
        _CONVOLUTION,
        _SHORT,
        {"rms_norm_eps": "norm_eps", "head_dim": None},
        fixed={"block_auto_adjust_ff_dim": False},
        bias="",
        state="conv",
    ),
    "lfm2moe": Architecture(
        "Lfm2MoeForCausalLM",
        {
            **_CONVOLUTION,
            **experts("num_experts"),
            **INNER,
            "expert_weights_norm": ("norm_topk_prob", bool),
            "expert_weights_scale": ("routed_scaling_factor", float),
            "leading_dense_block_count": ("num_dense_layers", int),
        },
        _SHORT,
        {"rms_norm_eps": "norm_eps", "head_dim": None},
        lacking={"num_dense_layers": 0},
        absent={"expert_gating_func": 2, "leading_dense_block_count": 0},  # 2: the sigmoid
        bias="",
        state="conv",
    ),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": replace(
        _NEMOTRON,
        fields={
            **RMS,
            **_STATES,
            **INNER,
            **experts("n_routed_experts"),
            "expert_group_count": ("n_group", int),
            "expert_group_used_count": ("topk_group", int),
            "expert_shared_count": ("n_shared_experts", int),
            "expert_shared_feed_forward_length": ("moe_shared_expert_intermediate_size", int),
            "expert_weights_norm": ("norm_topk_prob", bool),
            "expert_weights_scale": ("routed_scaling_factor", float),
            "moe_latent_size": ("moe_latent_size", int),
        },
        absent={"expert_gating_func": 2},  # the sigmoid
        stored={"mlp_bias": "blk.*.ffn_up_shexp.bias", "use_conv_bias": _BIASED},
        alone="moe",
    ),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM",
        _DELTA,
        _APART,
        _OF_DELTA,
        absent=_NO_DRAFTS,
        partial="partial_rotary_factor",
        unread=OF_IMAGES,
        tiled=True,
        changes=_RATES,
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM",
        {key: each for key, each in _DELTA_EXPERTS.items() if key != _WIDTH},
        _APART,
        _OF_DELTA,
        absent=_NO_DRAFTS,
        partial="partial_rotary_factor",
        unread=(*OF_IMAGES, _WIDTH),  # it has experts alone
        tiled=True,
        changes=_RATES,
        instead=GATES_AND_VALUES,
    ),
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM",
        _DELTA_EXPERTS,
        {**_GATED, **stored_together(LAYER + "ssm_ba", "strength", "decay", rows=chosen_rows)},
        _OF_DELTA,
        absent=_NO_DRAFTS,
        partial="partial_rotary_factor",
        changes=_RATES,
        instead={**GATES_AND_VALUES, **_BY_GROUP},
    ),
}
BAMBA = Architecture(
    "BambaForCausalLM",
    {**RMS, **_STATES},
    _MAMBA,
    absent={"expert_used_count": 0},
    paired=True,
    whole=True,
    partial="partial_rotary_factor",
    stored={"mamba_conv_bias": _BIASED},
    state="linear_attention",
    attending="attn_layer_indices",
    changes=_RATES,
)
