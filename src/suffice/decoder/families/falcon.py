"""Falcon 7B: parallel blocks with one LayerNorm, and one key/value head for all queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 65024,
    "hidden_size": 4544,
    "ffn_hidden_size": None,  # 4 times the hidden size
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "activation": "gelu",
    "max_position_embeddings": 2048,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "bias": False,
}
# Those of the 40B models and of falcon-rw have other layers.
ONLY = {
    "alibi": (False, None),
    "apply_residual_connection_post_layernorm": (False, None),
    "multi_query": (True,),
    "new_decoder_architecture": (False, None),
    "num_ln_in_parallel_attn": (None, 1),
    "parallel_attn": (True,),
}
SILENT = frozenset({"num_kv_heads"})  # with one head, whatever it says
_LAYER = "transformer.h.{i}."
_WEIGHTS: Templates = {
    "embed": "transformer.word_embeddings",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "layers.attn_norm": _LAYER + "input_layernorm",
    **stored_together(_LAYER + "self_attention.query_key_value", "q", "k", "v"),
    "layers.o": _LAYER + "self_attention.dense",
    "layers.up": _LAYER + "mlp.dense_h_to_4h",
    "layers.down": _LAYER + "mlp.dense_4h_to_h",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("bias",), ONLY, SILENT)
    size = head_size(fields, whole=True)
    return DecoderConfig(
        vocab=fields["vocab_size"],
        width=fields["hidden_size"],
        heads=fields["num_attention_heads"],
        kv_heads=1,
        head_size=size,
        mlp_width=fields["ffn_hidden_size"] or 4 * fields["hidden_size"],
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        norm="layer",
        norm_eps=fields["layer_norm_epsilon"],
        placement="pre",
        activation=activation(fields, "activation"),
        gated=False,
        attention_scale=size**-0.5,
        trained_positions=fields["max_position_embeddings"],
        ropes=(read_rope(fields),),
        parallel=True,
        shared_norm=True,
        tied=fields["tie_word_embeddings"],
        biases=frozenset(("q", "k", "v", "o", "up", "down") if fields["bias"] else ()),
    )


FALCON = Family("falcon", _read, _WEIGHTS, base="transformer.")
