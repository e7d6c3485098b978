"""OLMo 2: norms of the outputs of blocks, and of all heads of queries and keys together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.models.config import DecoderConfig, LayerConfig
from suffice.models.families import Family
from suffice.models.families.llama import WEIGHTS, sizes
from suffice.models.fields import activation, head_size, read_fields
from suffice.models.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_WEIGHTS = {
    **{name: stored for name, stored in WEIGHTS.items() if not name.endswith("norm")},
    "final_norm": "model.norm",
    "layers.q_norm": "model.layers.{i}.self_attn.q_norm",
    "layers.k_norm": "model.layers.{i}.self_attn.k_norm",
    "layers.post_attn_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.post_mlp_norm": "model.layers.{i}.post_feedforward_layernorm",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS)
    return DecoderConfig(
        **sizes(fields, head_size(fields)) | {"placement": "output"},
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        qk_norm=True,
        whole_qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


OLMO2 = Family("olmo2", _read, _WEIGHTS)
