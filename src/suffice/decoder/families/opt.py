"""OPT: LayerNorm, ReLU, learned positions, biases; the 350M model norms sums and projects rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.fields import activation, head_size, read_fields

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "word_embed_proj_dim": None,  # hidden_size
    "num_attention_heads": 12,
    "activation_function": "relu",
    "enable_bias": True,
    "tie_word_embeddings": True,
}
_ONLY = {"layer_norm_elementwise_affine": (True,)}
_OFFSET = 2  # the first rows of the position table are never used
_EPS = 1e-5

_WEIGHTS = {
    "embed": "model.decoder.embed_tokens",
    "positions": "model.decoder.embed_positions",
    "project_in": "model.decoder.project_in",
    "project_out": "model.decoder.project_out",
    "final_norm": "model.decoder.final_layer_norm",
    "head": "lm_head",
    "layers.attn_norm": "model.decoder.layers.{i}.self_attn_layer_norm",
    "layers.q": "model.decoder.layers.{i}.self_attn.q_proj",
    "layers.k": "model.decoder.layers.{i}.self_attn.k_proj",
    "layers.v": "model.decoder.layers.{i}.self_attn.v_proj",
    "layers.o": "model.decoder.layers.{i}.self_attn.out_proj",
    "layers.mlp_norm": "model.decoder.layers.{i}.final_layer_norm",
    "layers.up": "model.decoder.layers.{i}.fc1",
    "layers.down": "model.decoder.layers.{i}.fc2",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, only=_ONLY)
    size = head_size(fields, whole=True)
    before, positions = fields["do_layer_norm_before"], fields["max_position_embeddings"]
    return DecoderConfig(
        vocab=fields["vocab_size"],
        width=fields["hidden_size"],
        heads=fields["num_attention_heads"],
        kv_heads=fields["num_attention_heads"],
        head_size=size,
        mlp_width=fields["ffn_dim"],
        layers=(LayerConfig(rope=None),) * fields["num_hidden_layers"],
        norm="layer",
        norm_eps=_EPS,
        placement="pre" if before else "post",
        activation=activation(fields, "activation_function"),
        gated=False,
        attention_scale=size**-0.5,
        trained_positions=positions,
        embed_width=fields["word_embed_proj_dim"] or 0,
        position_rows=positions + _OFFSET,
        position_offset=_OFFSET,
        tied=fields["tie_word_embeddings"],
        final_norm=before and not fields["_remove_final_layer_norm"],
        biases=frozenset(("q", "k", "v", "o", "up", "down") if fields["enable_bias"] else ()),
    )


OPT = Family("opt", _read, _WEIGHTS)
