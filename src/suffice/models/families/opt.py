"""OPT: LayerNorm, ReLU, learned positions, biases; the 350M model norms sums and projects rows."""

from __future__ import annotations

from typing import Any

from suffice.models.config import DecoderConfig, LayerConfig
from suffice.models.families import Family
from suffice.models.families.llama import head_size
from suffice.models.fields import activation, normalise

_USED = (
    "vocab_size",
    "hidden_size",
    "ffn_dim",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "word_embed_proj_dim",
    "activation_function",
    "do_layer_norm_before",
    "_remove_final_layer_norm",
    "enable_bias",
    "tie_word_embeddings",
)
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
    from transformers.models.opt.configuration_opt import OPTConfig

    config = normalise(raw, OPTConfig, _USED, _ONLY)
    size = head_size(config)
    before = config.do_layer_norm_before
    return DecoderConfig(
        vocab=config.vocab_size,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        head_size=size,
        mlp_width=config.ffn_dim,
        layers=(LayerConfig(rope=None),) * config.num_hidden_layers,
        norm="layer",
        norm_eps=_EPS,
        placement="pre" if before else "post",
        activation=activation(config, "activation_function"),
        gated=False,
        attention_scale=size**-0.5,
        trained_positions=config.max_position_embeddings,
        embed_width=config.word_embed_proj_dim,
        position_rows=config.max_position_embeddings + _OFFSET,
        position_offset=_OFFSET,
        tied=config.tie_word_embeddings,
        final_norm=before and not config._remove_final_layer_norm,
        biases=frozenset(("q", "k", "v", "o", "up", "down") if config.enable_bias else ()),
    )


OPT = Family("opt", _read, _WEIGHTS)
