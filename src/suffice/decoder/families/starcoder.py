"""StarCoder 2: LayerNorm, an MLP without a gate, biases, a window."""

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
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "use_bias": True,
    "sliding_window": None,
}
ONLY = {"mlp_type": ("default",), "norm_type": ("layer_norm",)}  # of the first files
SILENT = frozenset({"embedding_dropout", "residual_dropout"})
_WEIGHTS = {
    **{name: stored for name, stored in WEIGHTS.items() if name != "layers.gate"},
    "layers.up": "model.layers.{i}.mlp.c_fc",
    "layers.down": "model.layers.{i}.mlp.c_proj",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, only=ONLY, silent=SILENT)
    shared = sizes(fields | {"rms_norm_eps": fields["norm_epsilon"]}, head_size(fields))
    biased = ("q", "k", "v", "o", "up", "down") if fields["use_bias"] else ()
    return DecoderConfig(
        **shared | {"norm": "layer", "gated": False},
        layers=(LayerConfig(fields["sliding_window"]),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        biases=frozenset(biased),
    )


STARCODER2 = Family("starcoder2", _read, _WEIGHTS, surplus=SURPLUS)
