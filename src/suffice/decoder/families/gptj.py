"""GPT-J: parallel blocks that share a norm, a part of heads rotated by pairs, biases in MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rotation import Rope

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50400,
    "n_positions": 2048,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "rotary_dim": 64,
    "n_inner": None,  # 4 n_embd
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
ONLY = {"rotary": (True,), "scale_attn_weights": (True,)}  # of the first files
SILENT = frozenset({"attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx", "summary_type"})
_LAYER = "transformer.h.{i}."
_WEIGHTS = {
    "embed": "transformer.wte",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "layers.attn_norm": _LAYER + "ln_1",
    "layers.q": _LAYER + "attn.q_proj",
    "layers.k": _LAYER + "attn.k_proj",
    "layers.v": _LAYER + "attn.v_proj",
    "layers.o": _LAYER + "attn.out_proj",
    "layers.up": _LAYER + "mlp.fc_in",
    "layers.down": _LAYER + "mlp.fc_out",
}
_SURPLUS = (r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",)  # of the first files


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, only=ONLY, silent=SILENT)
    width, heads = fields["n_embd"], fields["n_head"]
    size = head_size({"hidden_size": width, "num_attention_heads": heads}, whole=True)
    return DecoderConfig(
        vocab=fields["vocab_size"],
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=size,
        mlp_width=fields["n_inner"] or 4 * width,
        layers=(LayerConfig(),) * fields["n_layer"],
        norm="layer",
        norm_eps=fields["layer_norm_epsilon"],
        placement="pre",
        activation=activation(fields, "activation_function"),
        gated=False,
        attention_scale=size**-0.5,
        trained_positions=fields["n_positions"],
        ropes=(Rope(partial=fields["rotary_dim"] / size),),
        parallel=True,
        shared_norm=True,
        tied=fields["tie_word_embeddings"],
        paired=True,
        biases=frozenset(("up", "down", "head")),
    )


GPTJ = Family("gptj", _read, _WEIGHTS, surplus=_SURPLUS, base="transformer.")
