"""Mistral and Ministral: Llama's layers, some with a sliding window; Ministral 3 scales queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.checks import check_number, check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import SURPLUS, WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.rotation import Rope

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
MINISTRAL_DEFAULTS: Mapping[str, Any] = {
    **DEFAULTS,
    "layer_types": None,  # all slide, if there is a sliding_window
}
MINISTRAL3_DEFAULTS: Mapping[str, Any] = {
    **DEFAULTS,
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
_GROWTH = "llama_4_scaling_beta"  # of the queries of far positions
_ROPE: Mapping[str, Any] = {  # of a file that says nothing
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    _GROWTH: 0.1,
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, nullable=("sliding_window",))
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(fields["sliding_window"]),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
    )


def _read_ministral(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, MINISTRAL_DEFAULTS, nullable=("sliding_window",))
    window = fields["sliding_window"]
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=layers_by_kind(
            fields,
            lambda index: window is not None,
            sliding=LayerConfig(window),
            full=LayerConfig(),
        ),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
    )


def growing_rope(
    fields: Mapping[str, Any], default: Mapping[str, Any]
) -> tuple[Rope, tuple[float, int, int] | None]:
    """Read a rotation, `default` if there is none, and by how much queries of far positions grow.

    Raises:
        InputError: An impossible value of either.
    """
    given = fields["rope_parameters"]
    if given is None and fields["rope_scaling"] is None:
        given = default
    own = dict(given) if isinstance(given, Mapping) else {}
    own.pop("max_position_embeddings", None)  # transformers writes it there, too
    growth = own.pop(_GROWTH, None)
    rope = read_rope({**fields, "rope_parameters": own or given})
    if growth is None:
        return rope, None
    check_number(_GROWTH, growth)
    length: Any = dict(rope.parameters).get("original_max_position_embeddings")
    check_size("original_max_position_embeddings", length)
    return rope, (float(growth), length, 0)


def _read_ministral3(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, MINISTRAL3_DEFAULTS)
    rope, growth = growing_rope(fields, _ROPE)
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(fields["sliding_window"]),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(rope,),
        query_growth=growth,
    )


MISTRAL = Family("mistral", _read, WEIGHTS, surplus=SURPLUS)
MINISTRAL = Family("ministral", _read_ministral, WEIGHTS)
MINISTRAL3 = Family("ministral3", _read_ministral3, WEIGHTS)
