"""Arcee and Nemotron: an MLP without a gate, its activation the square of ReLU.

Nemotron has LayerNorm with 1 added to its stored weights, and rotates half of each head.
"""

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
    "vocab_size": 32000,
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
NEMOTRON_DEFAULTS: Mapping[str, Any] = {
    **{name: default for name, default in DEFAULTS.items() if name != "rms_norm_eps"},
    "partial_rotary_factor": 0.5,
    "vocab_size": 256000,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_attention_heads": 48,
    "norm_eps": 1e-5,
}
_WEIGHTS = {name: stored for name, stored in WEIGHTS.items() if name != "layers.gate"}


def _config(fields: Mapping[str, Any], **others: Any) -> DecoderConfig:
    shared = sizes(fields, head_size(fields, whole=True)) | {"gated": False}
    return DecoderConfig(
        **shared | others,
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        biases=llama_biases(fields) - {"gate"},
    )


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS)
    return _config(fields, ropes=(read_rope(fields),))


def _read_nemotron(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, NEMOTRON_DEFAULTS)
    fields["rms_norm_eps"] = fields["norm_eps"]
    return _config(fields, ropes=(read_rope(fields, partial=True),), norm="layer")


ARCEE = Family("arcee", _read, _WEIGHTS)
NEMOTRON = Family("nemotron", _read_nemotron, _WEIGHTS, norm_offset=1.0)
