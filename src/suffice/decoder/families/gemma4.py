"""Gemma 4, text: global layers with heads of their own size, and an input of each layer by token.

The last layers may read the keys and values of earlier ones, and have wider MLPs. All may have
experts next to their MLP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.checks import check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.gemma import HEAD_NORMS, NORMS
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import ROPE_DEFAULTS, layer_ropes
from suffice.decoder.routing import Experts
from suffice.errors import InputError, brief

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": None,  # as many, or those of keys that are values
    "head_dim": 256,
    "global_head_dim": 512,
    "per_layer_config": None,  # transformers' form of both
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": 512,
    "layer_types": None,  # every sixth is global
    "final_logit_softcapping": None,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "enable_moe_block": False,
    "num_experts": None,
    "top_k_experts": None,
    "moe_intermediate_size": None,
}
ONLY = {"use_bidirectional_attention": (None, "vision")}  # of images alone
_NULLABLE = ("sliding_window", "final_logit_softcapping")
_THETAS = {_LOCAL: 10_000.0, _GLOBAL: 1_000_000.0}
_ROTATIONS = {
    _LOCAL: {"rope_type": "default"},
    _GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25},
}
_OWN = {
    "layer_embed": "model.embed_tokens_per_layer",
    "layer_embed_project": "model.per_layer_model_projection",
    "layer_embed_norm": "model.per_layer_projection_norm",
    "layers.layer_gate": "model.layers.{i}.per_layer_input_gate",
    "layers.layer_out": "model.layers.{i}.per_layer_projection",
    "layers.post_layer_embed_norm": "model.layers.{i}.post_per_layer_input_norm",
    "layers.scale": "model.layers.{i}.layer_scalar",
}
_EXPERTS: Templates = {
    "layers.router": "model.layers.{i}.router.proj",
    "layers.router_norm": "model.layers.{i}.router.scale",
    "layers.factors": "model.layers.{i}.router.per_expert_scale",
    "layers.post_dense_norm": "model.layers.{i}.post_feedforward_layernorm_1",
    "layers.experts_norm": "model.layers.{i}.pre_feedforward_layernorm_2",
    "layers.post_experts_norm": "model.layers.{i}.post_feedforward_layernorm_2",
    **stored_together(
        "model.layers.{i}.experts.gate_up_proj", "expert_gate", "expert_up", by_expert=True
    ),
    **stored_together("model.layers.{i}.experts.down_proj", "expert_down", by_expert=True),
}
# of layers that read another's keys and values
_UNUSED = (r"model\.layers\.\d+\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\.weight",)


def _global_heads(fields: Mapping[str, Any], layers: tuple[LayerConfig, ...]) -> tuple[int, int]:
    """Return the key/value heads and the head size of global layers."""
    plain, own = fields["num_key_value_heads"], fields["per_layer_config"]
    if own is None:
        alone = fields["num_global_key_value_heads"] if fields["attention_k_eq_v"] else None
        return alone or plain, fields["global_head_dim"]
    wanted = {index for index, layer in enumerate(layers) if layer.window is None}
    values = list(own.values()) if isinstance(own, Mapping) else []
    known = values and all(each == values[0] and isinstance(each, Mapping) for each in values)
    given = {int(name) for name in own if re.fullmatch(r"\d{1,4}", str(name))} if known else set()
    if not known or given != wanted or set(values[0]) - {"head_dim", "num_key_value_heads"}:
        raise InputError(
            f"config field 'per_layer_config' = {brief(own)} must give all global layers, and "
            "no other, the same 'head_dim' and 'num_key_value_heads'"
        )
    found = {"num_key_value_heads": plain, "head_dim": fields["head_dim"], **values[0]}
    for name, value in found.items():
        check_size(f"per_layer_config.{name}", value)
    return found["num_key_value_heads"], found["head_dim"]


def _shared(fields: Mapping[str, Any], layers: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    """Return the layers; the last read what the nearest earlier layer of their kind stores."""
    shared = fields["num_kv_shared_layers"]
    if not 0 <= shared < len(layers):
        raise InputError(
            f"config field 'num_kv_shared_layers' = {shared} must be from 0 to {len(layers) - 1}"
        )
    first = len(layers) - shared
    found = list(layers)
    for index in range(first, len(layers)):
        owners = [at for at in range(first) if layers[at] == layers[index]]
        if not owners:
            raise InputError(
                f"config field 'num_kv_shared_layers' = {shared}: no layer "
                f"before has keys and values for layer {index}"
            )
        wide = 2 * fields["intermediate_size"] if fields["use_double_wide_mlp"] else None
        found[index] = replace(layers[index], shares=owners[-1], mlp_width=wide)
    return tuple(found)


def _experts(fields: Mapping[str, Any]) -> Experts | None:
    if not fields["enable_moe_block"]:
        return None
    for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        check_size(name, fields[name])
    return Experts(
        fields["num_experts"],
        fields["top_k_experts"],
        fields["moe_intermediate_size"],
        ("softmax", "top", "normalize"),
        factored=True,
        with_dense=True,
    )


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, _NULLABLE, ONLY)
    if fields["rope_parameters"] is None:
        fields["rope_parameters"] = _ROTATIONS
    ropes = layer_ropes(fields, _THETAS, ("default", "linear", "proportional"), partial=True)
    local = LayerConfig(fields["sliding_window"], rope=0)
    alone = LayerConfig(None, rope=1, keys_as_values=fields["attention_k_eq_v"])
    kinds = layers_by_kind(fields, lambda at: bool((at + 1) % 6), sliding=local, full=alone)
    layers = (*kinds[:-1], alone)  # whatever the file says of the last
    heads, size = _global_heads(fields, layers)
    sized = {
        local: replace(local, kv_heads=fields["num_key_value_heads"], head_size=head_size(fields)),
        alone: replace(alone, kv_heads=heads, head_size=size),
    }
    layers = _shared(fields, tuple(sized[each] for each in layers))
    own = fields["hidden_size_per_layer_input"]
    if own and fields["vocab_size_per_layer_input"] != fields["vocab_size"]:
        raise InputError(
            f"config field 'vocab_size_per_layer_input' = {fields['vocab_size_per_layer_input']} "
            f"must be 'vocab_size' = {fields['vocab_size']}"
        )
    shared = sizes(fields, max(size, head_size(fields))) | {
        "kv_heads": max(heads, fields["num_key_value_heads"]),
        "placement": "sandwich",
        "attention_scale": 1.0,
    }
    return DecoderConfig(
        **shared,
        layers=layers,
        activation=activation(fields, "hidden_activation"),
        ropes=(ropes[_LOCAL], ropes[_GLOBAL]),
        qk_norm=True,
        value_norm=True,
        layer_scales=True,
        layer_embed_size=own,
        embed_scale=fields["hidden_size"] ** 0.5,
        logit_cap=fields["final_logit_softcapping"] or 0.0,
        experts=_experts(fields),
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


_CALLED = (
    (r"(.*\.(?:layer_scalar|router\.scale|router\.per_expert_scale))", r"\1.weight"),
    (r"(.*\.experts\.(?:gate_up|down)_proj)", r"\1.weight"),
)

GEMMA4 = Family(
    "gemma4_text",
    _read,
    {**WEIGHTS, **NORMS, **HEAD_NORMS, **_OWN, **_EXPERTS},
    surplus=_UNUSED,
    called=_CALLED,
)
