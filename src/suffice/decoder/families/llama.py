"""Llama 1, 2 and 3, SmolLM2, and every checkpoint of that architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

# The defaults of the families are those of transformers' configuration classes.
DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size / num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
WEIGHTS = {
    "embed": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "layers.attn_norm": "model.layers.{i}.input_layernorm",
    "layers.q": "model.layers.{i}.self_attn.q_proj",
    "layers.k": "model.layers.{i}.self_attn.k_proj",
    "layers.v": "model.layers.{i}.self_attn.v_proj",
    "layers.o": "model.layers.{i}.self_attn.o_proj",
    "layers.mlp_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.gate": "model.layers.{i}.mlp.gate_proj",
    "layers.up": "model.layers.{i}.mlp.up_proj",
    "layers.down": "model.layers.{i}.mlp.down_proj",
}
# The frequencies follow from the configuration, but old checkpoints store them.
SURPLUS = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"model\.rotary_emb\.inv_freq")


def sizes(fields: Mapping[str, Any], head: int) -> dict[str, Any]:
    """Return the decoder's fields that all relatives of Llama share; `head` is the head size."""
    return {
        "vocab": fields["vocab_size"],
        "width": fields["hidden_size"],
        "heads": fields["num_attention_heads"],
        "kv_heads": fields["num_key_value_heads"] or fields["num_attention_heads"],
        "head_size": head,
        "mlp_width": fields["intermediate_size"],
        "norm": "rms",
        "norm_eps": fields["rms_norm_eps"],
        "placement": "pre",
        "gated": True,
        "attention_scale": head**-0.5,
        "trained_positions": fields["max_position_embeddings"],
        "tied": fields["tie_word_embeddings"],
    }


def llama_biases(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return which matrices have a bias."""
    attention = ("q", "k", "v", "o") if fields["attention_bias"] else ()
    mlp = ("gate", "up", "down") if fields["mlp_bias"] else ()
    return frozenset((*attention, *mlp))


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS)
    return DecoderConfig(
        **sizes(fields, head_size(fields, whole=True)),
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        biases=llama_biases(fields),
    )


LLAMA = Family("llama", _read, WEIGHTS, surplus=SURPLUS)
