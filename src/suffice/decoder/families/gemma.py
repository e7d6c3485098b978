"""Gemma 1; 2, with capped scores and logits; 3, text, with a rotation for each kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import SURPLUS, WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, layer_ropes, read_rope

GEMMA_DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",  # gelu means the same
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
GEMMA_ONLY = {
    "hidden_activation": (None, "gelu_pytorch_tanh"),  # of the first files
    "use_bidirectional_attention": (False, None),
}
DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 1_000_000.0,  # of global layers
    "rope_local_base_freq": 10_000.0,
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "_sliding_window_pattern": None,  # transformers writes it next to layer_types, and ignores it
    "layer_types": None,  # every sixth (sliding_window_pattern) is global
}
_ONLY = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (False, None),
}
GEMMA2_DEFAULTS: Mapping[str, Any] = {
    **{name: default for name, default in GEMMA_DEFAULTS.items() if name != "hidden_act"},
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,  # every second is global
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA2_ONLY = {
    "hidden_act": ("gelu_pytorch_tanh",),  # of the first files, next to hidden_activation
    "use_bidirectional_attention": (False, None),
}
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_ROPE_KINDS = ("default", "linear")
NORMS = {
    "layers.post_attn_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.mlp_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "layers.post_mlp_norm": "model.layers.{i}.post_feedforward_layernorm",
}
HEAD_NORMS = {
    "layers.q_norm": "model.layers.{i}.self_attn.q_norm",
    "layers.k_norm": "model.layers.{i}.self_attn.k_norm",
}


def _read_gemma(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, GEMMA_DEFAULTS, only=GEMMA_ONLY)
    if fields["hidden_act"] == "gelu":
        fields["hidden_act"] = "gelu_pytorch_tanh"
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        embed_scale=fields["hidden_size"] ** 0.5,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


def _read_gemma2(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, GEMMA2_DEFAULTS, ("sliding_window", *_CAPS), GEMMA2_ONLY)
    shared = sizes(fields, head_size(fields)) | {
        "placement": "sandwich",
        "attention_scale": fields["query_pre_attn_scalar"] ** -0.5,
    }
    score_cap, logit_cap = (fields[name] or 0.0 for name in _CAPS)
    return DecoderConfig(
        **shared,
        layers=layers_by_kind(
            fields,
            lambda index: index % 2 == 0,
            sliding=LayerConfig(fields["sliding_window"]),
            full=LayerConfig(None),
        ),
        activation=activation(fields, "hidden_activation"),
        ropes=(read_rope(fields),),
        embed_scale=fields["hidden_size"] ** 0.5,
        score_cap=score_cap,
        logit_cap=logit_cap,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("sliding_window",), _ONLY)
    thetas = {
        "sliding_attention": fields["rope_local_base_freq"],
        "full_attention": fields["rope_theta"],
    }
    ropes = layer_ropes(fields, thetas, _ROPE_KINDS)
    shared = sizes(fields, head_size(fields)) | {
        "placement": "sandwich",
        "attention_scale": fields["query_pre_attn_scalar"] ** -0.5,
    }
    return DecoderConfig(
        **shared,
        layers=layers_by_kind(
            fields,
            lambda index: bool((index + 1) % fields["sliding_window_pattern"]),
            sliding=LayerConfig(fields["sliding_window"], rope=0),
            full=LayerConfig(None, rope=1),
        ),
        activation=activation(fields, "hidden_activation"),
        ropes=(ropes["sliding_attention"], ropes["full_attention"]),
        qk_norm=True,
        embed_scale=fields["hidden_size"] ** 0.5,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


GEMMA = Family("gemma", _read_gemma, WEIGHTS, norm_offset=1.0, surplus=SURPLUS)
GEMMA2 = Family("gemma2", _read_gemma2, {**WEIGHTS, **NORMS}, norm_offset=1.0, surplus=SURPLUS)
GEMMA3 = Family("gemma3_text", _read, {**WEIGHTS, **NORMS, **HEAD_NORMS}, norm_offset=1.0)
