"""MiniCPM 3: attention to joint rows, with factors of embeddings, outputs and logits."""

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
    "vocab_size": 73448,
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": None,  # hidden_size // num_attention_heads
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}
# null: queries of the input itself, as many heads as of queries, and factors of 1
_NULLABLE = ("q_lora_rank", "num_key_value_heads", "scale_depth", "dim_model_base")


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, _NULLABLE, DENSE_ONLY)
    width, count = fields["hidden_size"], fields["num_hidden_layers"]
    fields["v_head_dim"] = fields["v_head_dim"] or width // fields["num_attention_heads"]
    latent, rope = read_latent(fields, adjacent=False), read_rope(fields)
    return DecoderConfig(
        **latent_sizes(fields, latent, rope),
        layers=latent_layers(count, 0),
        embed_scale=fields["scale_emb"],
        residual_scale=(fields["scale_depth"] or count**0.5) / count**0.5,
        logit_scale=(fields["dim_model_base"] or width) / width,
    )


MINICPM3 = Family("minicpm3", _read, LATENT_WEIGHTS, called=LATENT_CALLED)
