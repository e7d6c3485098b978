"""Mistral: Llama's layers, some of them with a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import SURPLUS, WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, nullable=("sliding_window",))
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(fields["sliding_window"]),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
    )


MISTRAL = Family("mistral", _read, WEIGHTS, surplus=SURPLUS)
