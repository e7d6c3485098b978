"""Mistral: Llama's layers, some of them with a sliding window."""

from __future__ import annotations

from typing import Any

from suffice.models.config import DecoderConfig, LayerConfig
from suffice.models.families import Family
from suffice.models.families.llama import ROPE_FIELDS, SIZE_FIELDS, SURPLUS, WEIGHTS, sizes
from suffice.models.fields import activation, normalise, read_rope


def _read(raw: dict[str, Any]) -> DecoderConfig:
    from transformers.models.mistral.configuration_mistral import MistralConfig

    used = (*SIZE_FIELDS, *ROPE_FIELDS, "hidden_act", "sliding_window")
    config = normalise(raw, MistralConfig, used, {})
    return DecoderConfig(
        **sizes(config),
        layers=(LayerConfig(config.sliding_window),) * config.num_hidden_layers,
        activation=activation(config, "hidden_act"),
        ropes=(read_rope(config.rope_parameters),),
    )


MISTRAL = Family("mistral", _read, WEIGHTS, surplus=SURPLUS)
