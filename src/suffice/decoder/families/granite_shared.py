"""Granite 4 of attention layers, and mixtures of Granite with an MLP that all rows share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import Family
from suffice.decoder.families.granite import MOE_DEFAULTS, MOE_WEIGHTS, granite_config
from suffice.decoder.families.llama import SURPLUS
from suffice.decoder.families.mixtral import SILENT
from suffice.decoder.fields import read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.routing import Experts
from suffice.errors import InputError, brief, unknown

SHARED_DEFAULTS: Mapping[str, Any] = {**MOE_DEFAULTS, "shared_intermediate_size": 0}  # none
DEFAULTS: Mapping[str, Any] = {
    **SHARED_DEFAULTS,
    "shared_intermediate_size": 1024,
    "position_embedding_type": None,  # without positions
    "layer_types": None,  # all have states
}
ONLY = {"init_method": ("mup",), "normalization_function": ("rmsnorm",)}  # of published files
_TYPE, _POSITIONS = "position_embedding_type", ("nope", "rope")
SILENT_OF_STATES = SILENT | {
    *("mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state"),
    *("mamba_expand", "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias", "time_step_limit"),
}
_OF_EXPERTS = ("num_local_experts", "num_experts_per_tok")
_ATTENTION = ("attention", "full_attention")
_MLP = "model.layers.{i}.shared_mlp."
_WEIGHTS: Templates = {
    **MOE_WEIGHTS,
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
    kinds, count = fields["layer_types"], fields["num_hidden_layers"]
    if not isinstance(kinds, list) or len(kinds) != count or set(kinds) - {*_ATTENTION}:
        raise InputError(
            f"config field 'layer_types' = {brief(kinds)} is not supported (layers with states); "
            f"supported: 'attention' for each of {count} layers"
        )
    positions = fields[_TYPE]
    if positions is not None and positions not in _POSITIONS:
        raise unknown(f"value of config field '{_TYPE}'", brief(positions), _POSITIONS)
    if dense:
        fields |= {"intermediate_size": fields["shared_intermediate_size"], "mlp_bias": False}
    config = granite_config(fields) if dense else _mixture(fields)
    rope = 0 if positions == "rope" else None
    return replace(config, layers=tuple(replace(each, rope=rope) for each in config.layers))


GRANITE_SHARED = Family("granitemoeshared", _read_shared, _WEIGHTS, surplus=SURPLUS)
GRANITE_HYBRID = Family("granitemoehybrid", _read, _WEIGHTS, surplus=SURPLUS)
