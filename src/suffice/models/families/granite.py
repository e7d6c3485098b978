"""Granite 3, dense: Llama's layers, with factors of embeddings, scores, outputs and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.models.config import DecoderConfig, LayerConfig
from suffice.models.families import Family
from suffice.models.families.llama import DEFAULTS as LLAMA_DEFAULTS
from suffice.models.families.llama import SURPLUS, WEIGHTS, llama_biases, sizes
from suffice.models.fields import activation, head_size, read_fields
from suffice.models.rope_fields import read_rope

DEFAULTS: Mapping[str, Any] = {
    **LLAMA_DEFAULTS,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS)
    shared = sizes(fields, head_size(fields, whole=True))
    return DecoderConfig(
        **shared | {"attention_scale": fields["attention_multiplier"]},
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        embed_scale=fields["embedding_multiplier"],
        rounds_embed_scale=False,
        residual_scale=fields["residual_multiplier"],
        logit_scale=1 / fields["logits_scaling"],
        biases=llama_biases(fields),
    )


GRANITE = Family("granite", _read, WEIGHTS, surplus=SURPLUS)
