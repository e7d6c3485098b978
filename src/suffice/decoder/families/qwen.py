"""Qwen2 (biases on q, k and v) and Qwen3 (norms of queries and keys); upper layers may slide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import SURPLUS, WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

QWEN2_DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,  # null: num_attention_heads
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,  # sliding from max_window_layers on, if use_sliding_window
}
QWEN3_DEFAULTS: Mapping[str, Any] = {**QWEN2_DEFAULTS, "head_dim": 128, "attention_bias": False}
_NULLABLE = ("num_key_value_heads", "sliding_window")
QK_NORMS = {
    "layers.q_norm": "model.layers.{i}.self_attn.q_norm",
    "layers.k_norm": "model.layers.{i}.self_attn.k_norm",
}


def _layers(fields: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    window = fields["sliding_window"] if fields["use_sliding_window"] else None
    return layers_by_kind(
        fields,
        lambda index: window is not None and index >= fields["max_window_layers"],
        sliding=LayerConfig(window),
        full=LayerConfig(),
    )


def _read_qwen2(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, QWEN2_DEFAULTS, _NULLABLE)
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=_layers(fields),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        biases=frozenset("qkv"),
    )


def _read_qwen3(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, QWEN3_DEFAULTS, _NULLABLE)
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=_layers(fields),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


QWEN2 = Family("qwen2", _read_qwen2, WEIGHTS, surplus=SURPLUS)
QWEN3 = Family("qwen3", _read_qwen3, {**WEIGHTS, **QK_NORMS}, surplus=SURPLUS)
