"""Qwen2 (biases on q, k and v) and Qwen3 (norms of queries and keys); upper layers may slide."""

from __future__ import annotations

from typing import Any

from suffice.models.config import DecoderConfig
from suffice.models.families import Family
from suffice.models.families.llama import ROPE_FIELDS, SIZE_FIELDS, SURPLUS, WEIGHTS, sizes
from suffice.models.fields import activation, layer_windows, normalise, read_rope

_WINDOW_FIELDS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_QK_NORMS = {
    "layers.q_norm": "model.layers.{i}.self_attn.q_norm",
    "layers.k_norm": "model.layers.{i}.self_attn.k_norm",
}


def _read_qwen2(raw: dict[str, Any]) -> DecoderConfig:
    from transformers.models.qwen2.configuration_qwen2 import Qwen2Config

    used = (*SIZE_FIELDS, *ROPE_FIELDS, *_WINDOW_FIELDS, "hidden_act")
    config = normalise(raw, Qwen2Config, used, {})
    return DecoderConfig(
        **sizes(config),
        layers=layer_windows(config),
        activation=activation(config, "hidden_act"),
        ropes=(read_rope(config.rope_parameters),),
        biases=frozenset("qkv"),
    )


def _read_qwen3(raw: dict[str, Any]) -> DecoderConfig:
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    used = (*SIZE_FIELDS, *ROPE_FIELDS, *_WINDOW_FIELDS, "hidden_act", "attention_bias")
    config = normalise(raw, Qwen3Config, used, {})
    return DecoderConfig(
        **sizes(config),
        layers=layer_windows(config),
        activation=activation(config, "hidden_act"),
        ropes=(read_rope(config.rope_parameters),),
        qk_norm=True,
        biases=frozenset("qkvo" if config.attention_bias else ""),
    )


QWEN2 = Family("qwen2", _read_qwen2, WEIGHTS, surplus=SURPLUS)
QWEN3 = Family("qwen3", _read_qwen3, {**WEIGHTS, **_QK_NORMS}, surplus=SURPLUS)
