"""Youtu-LLM: DeepSeek V3's attention, and dense MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import Family
from suffice.decoder.families.deepseek import (
    DENSE_ONLY,
    LATENT_CALLED,
    LATENT_DEFAULTS,
    LATENT_WEIGHTS,
    latent_layers,
    latent_sizes,
    read_latent,
)
from suffice.decoder.fields import read_fields
from suffice.decoder.rope_fields import read_rope

DEFAULTS: Mapping[str, Any] = {
    **LATENT_DEFAULTS,
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rope_interleave": True,
}
SILENT = frozenset({"embedding_initializer_range"})


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("q_lora_rank",), DENSE_ONLY, SILENT)
    latent = read_latent(fields, adjacent=fields["rope_interleave"])
    rope = read_rope(fields)
    return DecoderConfig(
        **latent_sizes(fields, latent, rope),
        layers=latent_layers(fields["num_hidden_layers"], 0),
    )


YOUTU = Family("youtu", _read, LATENT_WEIGHTS, called=LATENT_CALLED)
