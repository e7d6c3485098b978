"""EXAONE 4: norms of outputs, of queries and of keys; layers without a window have no positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import sizes
from suffice.decoder.families.olmo import OUTPUT_NORMS
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.errors import InputError, brief

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": 4096,  # null: no layer slides, and all have positions
    "layer_types": None,  # all slide but every fourth (sliding_window_pattern)
}
PATTERN = "sliding_window_pattern"  # a text or 0 in files with layer_types, which decide then


def _pattern(raw: Mapping[str, Any], fields: Mapping[str, Any]) -> int:
    """Return every how many layers one does not slide; 1 if none does.

    Raises:
        InputError: The pattern is no number.
    """
    pattern = raw.get(PATTERN, 4)
    if fields["sliding_window"] is None or fields["layer_types"] is not None:
        return 1
    if type(pattern) is not int or pattern < 1:
        raise InputError(
            f"config field '{PATTERN}' = {brief(pattern)} must be a whole number of at least 1 "
            "where 'layer_types' is missing"
        )
    return pattern


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("sliding_window",), silent=(PATTERN,))
    window, pattern = fields["sliding_window"], _pattern(raw, fields)
    return DecoderConfig(
        **sizes(fields, head_size(fields)) | {"placement": "output"},
        layers=layers_by_kind(
            fields,
            lambda index: bool((index + 1) % pattern),
            sliding=LayerConfig(window),
            full=LayerConfig(None, rope=0 if window is None else None),
        ),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        qk_norm=True,
    )


EXAONE4 = Family("exaone4", _read, OUTPUT_NORMS)
