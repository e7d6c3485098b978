"""Llama 1, 2 and 3, SmolLM2, and every checkpoint of that architecture."""

from __future__ import annotations

from typing import Any

from suffice.models.config import DecoderConfig, LayerConfig, check_size
from suffice.models.families import Family
from suffice.models.fields import activation, normalise, read_rope

ROPE_FIELDS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
SIZE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
)
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


def head_size(config: Any) -> int:
    """Return the head size; old configurations leave it out, and it is derived.

    Raises:
        InputError: There are more heads than the hidden size has entries.
    """
    given = getattr(config, "head_dim", None)
    size = given or config.hidden_size // config.num_attention_heads
    check_size("head_dim", size)
    return int(size)


def sizes(config: Any) -> dict[str, Any]:
    """Return the decoder's fields that all relatives of Llama share."""
    return {
        "vocab": config.vocab_size,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_size": head_size(config),
        "mlp_width": config.intermediate_size,
        "norm": "rms",
        "norm_eps": config.rms_norm_eps,
        "placement": "pre",
        "gated": True,
        "attention_scale": head_size(config) ** -0.5,
        "trained_positions": config.max_position_embeddings,
        "tied": config.tie_word_embeddings,
    }


def _read(raw: dict[str, Any]) -> DecoderConfig:
    from transformers.models.llama.configuration_llama import LlamaConfig

    used = (*SIZE_FIELDS, *ROPE_FIELDS, "hidden_act", "attention_bias", "mlp_bias")
    config = normalise(raw, LlamaConfig, used, {})
    attention = ("q", "k", "v", "o") if config.attention_bias else ()
    mlp = ("gate", "up", "down") if config.mlp_bias else ()
    return DecoderConfig(
        **sizes(config),
        layers=(LayerConfig(),) * config.num_hidden_layers,
        activation=activation(config, "hidden_act"),
        ropes=(read_rope(config.rope_parameters),),
        biases=frozenset((*attention, *mlp)),
    )


LLAMA = Family("llama", _read, WEIGHTS, surplus=SURPLUS)
