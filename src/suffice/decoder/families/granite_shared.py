"""Granite 4, with states or without, and mixtures of Granite with an MLP that all rows share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.bamba import (
    MAMBA_CALLED,
    MAMBA_CHANGES,
    MAMBA_DEFAULTS,
    MAMBA_ONLY,
    MAMBA_SILENT,
    MAMBA_WEIGHTS,
    mamba_biases,
    mamba_state,
)
from suffice.decoder.families.granite import MOE_DEFAULTS, MOE_WEIGHTS, granite_config
from suffice.decoder.families.llama import SURPLUS
from suffice.decoder.families.mixtral import SILENT
from suffice.decoder.fields import layers_of_kinds, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.routing import Experts
from suffice.errors import brief, unknown

SHARED_DEFAULTS: Mapping[str, Any] = {**MOE_DEFAULTS, "shared_intermediate_size": 0}  # none
DEFAULTS: Mapping[str, Any] = {
    **SHARED_DEFAULTS,
    **MAMBA_DEFAULTS,
    "shared_intermediate_size": 1024,
    "position_embedding_type": None,  # without positions
    "layer_types": None,  # all have states
}
ONLY = {  # of published files
    **MAMBA_ONLY,
    "init_method": ("mup",),
    "normalization_function": ("rmsnorm",),
}
_TYPE, _POSITIONS = "position_embedding_type", ("nope", "rope")
SILENT_OF_STATES = SILENT | MAMBA_SILENT
_OF_EXPERTS = ("num_local_experts", "num_experts_per_tok")
_MLP = "model.layers.{i}.shared_mlp."
_WEIGHTS: Templates = {
    **MOE_WEIGHTS,
    **MAMBA_WEIGHTS,
    **stored_together(_MLP + "input_linear", "gate", "up"),
    **stored_together(_MLP + "input_linear", "shared_gate", "shared_up"),
    "layers.down": _MLP + "output_linear",
    "layers.shared_down": _MLP + "output_linear",
}


def _mixture(fields: Mapping[str, Any]) -> DecoderConfig:
    experts = Experts(
        fields["num_local_experts"],
        fields["num_experts_per_tok"],
        fields["intermediate_size"],
        ("top", "softmax"),
        shared=fields["shared_intermediate_size"],
    )
    return replace(granite_config({**fields, "mlp_bias": False}), experts=experts)


def _read_shared(raw: dict[str, Any]) -> DecoderConfig:
    return _mixture(read_fields(raw, SHARED_DEFAULTS, silent=SILENT))


def _read(raw: dict[str, Any]) -> DecoderConfig:
    if dense := raw.get("num_local_experts") == 0:
        raw = {name: value for name, value in raw.items() if name not in _OF_EXPERTS}
    fields = read_fields(raw, DEFAULTS, only=ONLY, silent=SILENT_OF_STATES)
    positions = fields[_TYPE]
    if positions is not None and positions not in _POSITIONS:
        raise unknown(f"value of config field '{_TYPE}'", brief(positions), _POSITIONS)
    if dense:
        fields |= {"intermediate_size": fields["shared_intermediate_size"], "mlp_bias": False}
    config = granite_config(fields) if dense else _mixture(fields)
    state = LayerConfig(mixer="state")
    kinds = {
        "full_attention": LayerConfig(rope=0 if positions == "rope" else None),
        **dict.fromkeys(("linear_attention", "mamba"), state),
    }
    layers = layers_of_kinds(fields, lambda index: "mamba", kinds)
    return replace(
        config,
        layers=layers,
        biases=config.biases | mamba_biases(fields),
        state=mamba_state(fields) if state in layers else None,
    )


GRANITE_SHARED = Family("granitemoeshared", _read_shared, _WEIGHTS, surplus=SURPLUS)
GRANITE_HYBRID = Family(
    "granitemoehybrid",
    _read,
    _WEIGHTS,
    changes=MAMBA_CHANGES,
    surplus=SURPLUS,
    called=MAMBA_CALLED,
)
