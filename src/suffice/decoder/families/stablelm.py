"""StableLM: Llama with LayerNorm and a rotated part of each head; blocks may be parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import SURPLUS, WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "partial_rotary_factor": 0.25,
    "vocab_size": 50304,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_qkv_bias": False,
    "use_parallel_residual": False,
}
ONLY = {"qk_layernorm": (False,)}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, only=ONLY)
    shared = sizes(
        fields | {"rms_norm_eps": fields["layer_norm_eps"]}, head_size(fields, whole=True)
    )
    return DecoderConfig(
        **shared | {"norm": "layer"},
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields, partial=True),),
        parallel=fields["use_parallel_residual"],
        shared_norm=fields["use_parallel_residual"],
        biases=frozenset("qkv" if fields["use_qkv_bias"] else ""),
    )


STABLELM = Family("stablelm", _read, WEIGHTS, surplus=SURPLUS)
