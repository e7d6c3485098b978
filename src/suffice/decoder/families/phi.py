"""Phi 1 and 2 (parallel blocks, LayerNorm, biases); Phi 3, 3.5 and 4 (matrices stored as one)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.errors import unknown

PHI_DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "partial_rotary_factor": 0.5,
    "vocab_size": 51200,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "hidden_act": "gelu_new",
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
PHI3_DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "original_max_position_embeddings": 4096,
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": None,
}
SILENT = frozenset({"embd_pdrop", "resid_pdrop"})  # of training
PHI_ONLY = {"qk_layernorm": (False,)}
PHI3_ONLY = {  # as published files have them
    "attention_bias": (False, None),
    "full_attn_mod": (1, None),
    "interpolate_factor": (1, None),
    "lm_head_bias": (False, None),
    "mlp_bias": (False, None),
}
_ROPE_KINDS = ("default", "longrope")
_OLD_KINDS = ("su", "yarn")  # names that longrope had
_PHI_WEIGHTS = {
    **WEIGHTS,
    "final_norm": "model.final_layernorm",
    "layers.o": "model.layers.{i}.self_attn.dense",
    "layers.up": "model.layers.{i}.mlp.fc1",
    "layers.down": "model.layers.{i}.mlp.fc2",
}
_PHI3_WEIGHTS: Templates = {
    **WEIGHTS,
    **stored_together("model.layers.{i}.self_attn.qkv_proj", "q", "k", "v"),
    **stored_together("model.layers.{i}.mlp.gate_up_proj", "gate", "up"),
}


def _read_phi(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, PHI_DEFAULTS, only=PHI_ONLY, silent=SILENT)
    shared = sizes(
        fields | {"rms_norm_eps": fields["layer_norm_eps"]}, head_size(fields, whole=True)
    )
    return DecoderConfig(
        **shared | {"norm": "layer", "gated": False},
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields, partial=True),),
        parallel=True,
        shared_norm=True,
        biases=frozenset(("q", "k", "v", "o", "up", "down", "head")),
    )


def _read_phi3(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, PHI3_DEFAULTS, only=PHI3_ONLY, silent=SILENT)
    for name in ("rope_scaling", "rope_parameters"):
        given = fields[name]
        if isinstance(given, Mapping) and given.get("rope_type", given.get("type")) in _OLD_KINDS:
            fields[name] = {**given, "rope_type": "longrope"}
    rope = read_rope(fields, partial=True)
    if rope.kind not in _ROPE_KINDS:
        raise unknown("rope_type", rope.kind, _ROPE_KINDS)
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(fields["sliding_window"]),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(rope,),
    )


PHI = Family("phi", _read_phi, _PHI_WEIGHTS)
PHI3 = Family("phi3", _read_phi3, _PHI3_WEIGHTS)
