"""Gemma 3, text: local and global layers with a rotary embedding each, norms around every part."""

from __future__ import annotations

from typing import Any

from suffice.models.config import DecoderConfig, LayerConfig
from suffice.models.families import Family
from suffice.models.families.llama import ROPE_FIELDS, SIZE_FIELDS, WEIGHTS, sizes
from suffice.models.fields import activation, normalise, read_rope, sliding_layers

_USED = (
    *SIZE_FIELDS,
    *ROPE_FIELDS,
    "attention_bias",
    "hidden_activation",
    "layer_types",
    "query_pre_attn_scalar",
    "rope_local_base_freq",
    "sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
)
_ONLY = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (False, None),
}
_LOCAL, _GLOBAL = 0, 1
_ROPE_KINDS = ("default", "linear")
_NORMS = {
    "layers.q_norm": "model.layers.{i}.self_attn.q_norm",
    "layers.k_norm": "model.layers.{i}.self_attn.k_norm",
    "layers.post_attn_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.mlp_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "layers.post_mlp_norm": "model.layers.{i}.post_feedforward_layernorm",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig

    config = normalise(raw, Gemma3TextConfig, _USED, _ONLY)
    layers = tuple(
        LayerConfig(config.sliding_window, _LOCAL) if slides else LayerConfig(None, _GLOBAL)
        for slides in sliding_layers(config)
    )
    ropes = config.rope_parameters
    shared = sizes(config) | {
        "placement": "sandwich",
        "attention_scale": config.query_pre_attn_scalar**-0.5,
    }
    return DecoderConfig(
        **shared,
        layers=layers,
        activation=activation(config, "hidden_activation"),
        ropes=(
            read_rope(ropes["sliding_attention"], _ROPE_KINDS),
            read_rope(ropes["full_attention"], _ROPE_KINDS),
        ),
        qk_norm=True,
        embed_scale=config.hidden_size**0.5,
        biases=frozenset("qkvo" if config.attention_bias else ""),
    )


GEMMA3 = Family("gemma3_text", _read, {**WEIGHTS, **_NORMS}, norm_offset=1.0)
