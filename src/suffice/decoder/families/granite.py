"""Granite 3, dense and with experts: Llama's layers, with factors of four kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import DEFAULTS as LLAMA_DEFAULTS
from suffice.decoder.families.llama import SURPLUS, WEIGHTS, llama_biases, sizes
from suffice.decoder.families.mixtral import SILENT
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import read_rope
from suffice.decoder.routing import Experts

_FACTORS: Mapping[str, Any] = {
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
DEFAULTS: Mapping[str, Any] = {**LLAMA_DEFAULTS, **_FACTORS}
MOE_DEFAULTS: Mapping[str, Any] = {
    **{name: default for name, default in DEFAULTS.items() if name != "mlp_bias"},
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_MOE = "model.layers.{i}.block_sparse_moe."
MOE_WEIGHTS: Templates = {
    **WEIGHTS,
    "layers.router": _MOE + "router.layer",
    **stored_together(_MOE + "input_linear", "expert_gate", "expert_up", by_expert=True),
    **stored_together(_MOE + "output_linear", "expert_down", by_expert=True),
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    return granite_config(read_fields(raw, DEFAULTS))


def _read_moe(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, MOE_DEFAULTS, silent=SILENT)
    experts = Experts(
        fields["num_local_experts"],
        fields["num_experts_per_tok"],
        fields["intermediate_size"],
        ("top", "softmax"),
    )
    return replace(granite_config(fields | {"mlp_bias": False}), experts=experts)


def granite_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """Return what dense models and mixtures have in common."""
    shared = sizes(fields, head_size(fields, whole=True))
    return DecoderConfig(
        **shared | {"attention_scale": fields["attention_multiplier"]},
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        embed_scale=fields["embedding_multiplier"],
        rounds_embed_scale=False,
        residual_scale=fields["residual_multiplier"],
        logit_scale=1 / fields["logits_scaling"],
        biases=llama_biases(fields),
    )


GRANITE_MOE = Family("granitemoe", _read_moe, MOE_WEIGHTS, surplus=SURPLUS)
GRANITE = Family("granite", _read, WEIGHTS, surplus=SURPLUS)
