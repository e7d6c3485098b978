"""GPT-NeoX and Pythia: parallel blocks, a rotated part of each head, one matrix for q, k and v."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import read_rope

DEFAULTS: Mapping[str, Any] = {
    "rope_scaling": None,
    "rope_parameters": None,
    "rotary_emb_base": 10_000.0,
    "rotary_pct": 0.25,
    "original_max_position_embeddings": None,
    "vocab_size": 50432,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "attention_bias": True,
}
_LAYER = "gpt_neox.layers.{i}."
_WEIGHTS: Templates = {
    "embed": "gpt_neox.embed_in",
    "final_norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
    "layers.attn_norm": _LAYER + "input_layernorm",
    **stored_together(_LAYER + "attention.query_key_value", "q", "k", "v", by_head=True),
    "layers.o": _LAYER + "attention.dense",
    "layers.mlp_norm": _LAYER + "post_attention_layernorm",
    "layers.up": _LAYER + "mlp.dense_h_to_4h",
    "layers.down": _LAYER + "mlp.dense_4h_to_h",
}
# Masks and frequencies, which follow from the configuration.
_SURPLUS = (
    r"(gpt_neox\.)?layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",
    r"(gpt_neox\.)?rotary_emb\.inv_freq",
)


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS)
    size, heads = head_size(fields, whole=True), fields["num_attention_heads"]
    rotary = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    named = {**fields, **{name: fields[own] for name, own in rotary.items()}}
    attention = ("q", "k", "v", "o") if fields["attention_bias"] else ()
    return DecoderConfig(
        vocab=fields["vocab_size"],
        width=fields["hidden_size"],
        heads=heads,
        kv_heads=heads,
        head_size=size,
        mlp_width=fields["intermediate_size"],
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        norm="layer",
        norm_eps=fields["layer_norm_eps"],
        placement="pre",
        activation=activation(fields, "hidden_act"),
        gated=False,
        attention_scale=size**-0.5,
        trained_positions=fields["max_position_embeddings"],
        ropes=(read_rope(named, partial=True),),
        parallel=fields["use_parallel_residual"],
        tied=fields["tie_word_embeddings"],
        biases=frozenset((*attention, "up", "down")),
    )


NEOX = Family("gpt_neox", _read, _WEIGHTS, surplus=_SURPLUS, base="gpt_neox.")
