"""SmolLM3: Llama's layers, some of them without positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, llama_biases, sizes
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.errors import InputError, brief

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 2_000_000.0,
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,  # null: num_attention_heads
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "no_rope_layers": None,  # 0 for each layer without; every no_rope_layer_interval-th
    "no_rope_layer_interval": 4,
    "layer_types": None,  # sliding where there is no rope, if use_sliding_window
}
SILENT = frozenset({"max_window_layers"})  # in published files, and not read


def _rotates(fields: Mapping[str, Any]) -> list[bool]:
    """Return for each layer whether its queries and keys are rotated."""
    count, given = fields["num_hidden_layers"], fields["no_rope_layers"]
    if given is None:
        return [bool((index + 1) % fields["no_rope_layer_interval"]) for index in range(count)]
    if not isinstance(given, list) or len(given) < count or any(n not in (0, 1) for n in given):
        raise InputError(
            f"config field 'no_rope_layers' = {brief(given)} must be a list of 0 (no rope) or 1 "
            f"for each of 'num_hidden_layers' = {count}"
        )
    return [bool(each) for each in given[:count]]


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, nullable=("num_key_value_heads",), silent=SILENT)
    rotates = _rotates(fields)
    window = fields["sliding_window"] if fields["use_sliding_window"] else None
    kinds = layers_by_kind(
        fields,
        lambda index: window is not None and not rotates[index],
        sliding=LayerConfig(window),
        full=LayerConfig(),
    )
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=tuple(
            LayerConfig(own.window, 0 if turned else None)
            for own, turned in zip(kinds, rotates, strict=True)
        ),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        biases=llama_biases(fields),
    )


SMOLLM3 = Family("smollm3", _read, WEIGHTS)
