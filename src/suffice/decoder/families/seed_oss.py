"""Seed-OSS: Llama with a head size and biases of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 155136,
    "hidden_size": 4096,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,  # null: num_attention_heads
    "head_dim": 128,  # null: hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 524288,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": True,  # of q, k and v
    "attention_out_bias": False,
    "mlp_bias": False,
}
SILENT = frozenset({"residual_dropout"})


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("num_key_value_heads", "head_dim"), silent=SILENT)
    biases = [
        *("qkv" if fields["attention_bias"] else ""),
        *("o" if fields["attention_out_bias"] else ""),
        *(("gate", "up", "down") if fields["mlp_bias"] else ()),
    ]
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        biases=frozenset(biases),
    )


SEED_OSS = Family("seed_oss", _read, WEIGHTS)
