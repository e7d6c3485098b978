"""ERNIE 4.5 and Helium: Llama with rotation by pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, llama_biases, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 500_000.0,
    "vocab_size": 103424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,  # null: num_attention_heads
    "head_dim": 128,  # null: hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "use_bias": False,
}
HELIUM_DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 100_000.0,
    "vocab_size": 48000,
    "hidden_size": 2560,
    "intermediate_size": 7040,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-8,
    "tie_word_embeddings": False,
    "attention_bias": False,  # of q, k and v
    "mlp_bias": False,
}


def _config(fields: Mapping[str, Any], biases: frozenset[str]) -> DecoderConfig:
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        paired=True,
        biases=biases,
    )


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("num_key_value_heads", "head_dim", "use_bias"))
    biased = bool(fields["use_bias"])
    return _config(fields, llama_biases({"attention_bias": biased, "mlp_bias": biased}))


def _read_helium(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, HELIUM_DEFAULTS)
    return _config(fields, llama_biases(fields) - {"o"})


ERNIE = Family("ernie4_5", _read, WEIGHTS)
HELIUM = Family("helium", _read_helium, WEIGHTS)
