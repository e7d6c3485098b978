"""GLM and GLM-4: half of each head is rotated, by pairs; GLM-4 also norms the outputs of blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "partial_rotary_factor": 0.5,
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-7,
    "tie_word_embeddings": False,
    "attention_bias": True,  # of q, k and v
}
_GLM_WEIGHTS: Templates = {
    **WEIGHTS,
    **stored_together("model.layers.{i}.mlp.gate_up_proj", "gate", "up"),
}
_GLM4_WEIGHTS: Templates = {
    **_GLM_WEIGHTS,
    "layers.post_attn_norm": "model.layers.{i}.post_self_attn_layernorm",
    "layers.post_mlp_norm": "model.layers.{i}.post_mlp_layernorm",
}


def _reader(placement: str, *nullable: str) -> Callable[[dict[str, Any]], DecoderConfig]:
    def read(raw: dict[str, Any]) -> DecoderConfig:
        fields = read_fields(raw, DEFAULTS, nullable)
        return DecoderConfig(
            **sizes(fields, head_size(fields)) | {"placement": placement},
            layers=(LayerConfig(),) * fields["num_hidden_layers"],
            activation=activation(fields, "hidden_act"),
            ropes=(read_rope(fields, partial=True),),
            paired=True,
            biases=frozenset("qkv" if fields["attention_bias"] else ""),
        )

    return read


GLM = Family("glm", _reader("pre", "head_dim"), _GLM_WEIGHTS)
GLM4 = Family("glm4", _reader("sandwich"), _GLM4_WEIGHTS)
