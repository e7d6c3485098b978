"""GPT-2: learned positions, LayerNorm, biases; matrices stored transposed, q, k and v as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.fields import activation, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.errors import InputError

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,  # 4 n_embd
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}
# of training and classification, of older versions, and the order of two steps
SILENT = frozenset(
    {
        "attn_pdrop",
        "embd_pdrop",
        "n_ctx",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    }
)
ONLY = {"scale_attn_by_inverse_layer_idx": (False,)}
_LAYER = "transformer.h.{i}."
_WEIGHTS: Templates = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "layers.attn_norm": _LAYER + "ln_1",
    **stored_together(_LAYER + "attn.c_attn", "q", "k", "v", transposed=True),
    **stored_together(_LAYER + "attn.c_proj", "o", transposed=True),
    "layers.mlp_norm": _LAYER + "ln_2",
    **stored_together(_LAYER + "mlp.c_fc", "up", transposed=True),
    **stored_together(_LAYER + "mlp.c_proj", "down", transposed=True),
}
_SURPLUS = (r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",)  # masks


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, only=ONLY, silent=SILENT)
    width, heads = fields["n_embd"], fields["n_head"]
    if width % heads:
        raise InputError(
            f"config field 'n_embd' = {width} must be a multiple of 'n_head' = {heads}"
        )
    size = width // heads
    return DecoderConfig(
        vocab=fields["vocab_size"],
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=size,
        mlp_width=4 * width if fields["n_inner"] is None else fields["n_inner"],
        layers=(LayerConfig(rope=None),) * fields["n_layer"],
        norm="layer",
        norm_eps=fields["layer_norm_epsilon"],
        placement="pre",
        activation=activation(fields, "activation_function"),
        gated=False,
        attention_scale=size**-0.5 if fields["scale_attn_weights"] else 1.0,
        trained_positions=fields["n_positions"],
        position_rows=fields["n_positions"],
        tied=fields["tie_word_embeddings"],
        biases=frozenset(("q", "k", "v", "o", "up", "down")),
    )


GPT2 = Family("gpt2", _read, _WEIGHTS, surplus=_SURPLUS, base="transformer.")
