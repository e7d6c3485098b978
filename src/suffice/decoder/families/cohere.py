"""Command R (Cohere) and Cohere 2: parallel blocks, LayerNorm without biases, rotation by pairs.

In Cohere 2, layers without a window have no positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, layers_by_kind, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 500_000.0,
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "logit_scale": 0.0625,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "num_key_value_heads": None,  # num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
ONLY = {"use_qk_norm": (False, None)}
COHERE2_DEFAULTS: Mapping[str, Any] = {
    **DEFAULTS,
    "rope_theta": 10_000.0,
    "head_dim": None,  # hidden_size // num_attention_heads
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "layer_types": None,  # all slide but every fourth (sliding_window_pattern)
}
COHERE2_ONLY = {  # of the first files
    "position_embedding_type": ("rope_gptj",),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
    "use_parallel_embedding": (False,),
    "use_qk_norm": (False, None),
}
COHERE2_SILENT = frozenset({"order_of_interleaved_layers", "rotary_pct"})
_WEIGHTS = {name: stored for name, stored in WEIGHTS.items() if name != "layers.mlp_norm"}


def _config(fields: Mapping[str, Any], layers: tuple[LayerConfig, ...]) -> DecoderConfig:
    given = {**fields, "rms_norm_eps": fields["layer_norm_eps"]}
    shared = sizes(given, head_size(fields))
    return DecoderConfig(
        **shared | {"norm": "layer"},
        layers=layers,
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        norm_biases=False,
        paired=True,
        parallel=True,
        shared_norm=True,
        logit_scale=fields["logit_scale"],
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, only=ONLY)
    return _config(fields, (LayerConfig(),) * fields["num_hidden_layers"])


def _read_cohere2(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, COHERE2_DEFAULTS, ("sliding_window",), COHERE2_ONLY, COHERE2_SILENT)
    layers = layers_by_kind(
        fields,
        lambda index: bool((index + 1) % fields["sliding_window_pattern"]),
        sliding=LayerConfig(fields["sliding_window"]),
        full=LayerConfig(None, rope=None),
    )
    return _config(fields, layers)


COHERE = Family("cohere", _read, _WEIGHTS)
COHERE2 = Family("cohere2", _read_cohere2, _WEIGHTS)
