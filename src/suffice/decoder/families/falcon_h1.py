"""Falcon-H1: attention and Mamba-2 side by side in every layer, and multipliers of what they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.checks import check_number
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.bamba import (
    MAMBA_CALLED,
    MAMBA_CHANGES,
    MAMBA_DEFAULTS,
    MAMBA_ONLY,
    MAMBA_SILENT,
    MAMBA_WEIGHTS,
    mamba_state,
)
from suffice.decoder.families.llama import DEFAULTS as LLAMA_DEFAULTS
from suffice.decoder.families.llama import WEIGHTS, llama_biases, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Templates
from suffice.decoder.rope_fields import read_rope
from suffice.decoder.states import Recurrence
from suffice.errors import InputError, brief

DEFAULTS: Mapping[str, Any] = {
    **LLAMA_DEFAULTS,
    **MAMBA_DEFAULTS,
    "vocab_size": 128000,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "mamba_d_ssm": 1024,  # of all heads with states; null: mamba_expand * hidden_size
    "mamba_norm_before_gate": True,
    "mamba_rms_norm": False,
    "projectors_bias": False,  # of the matrix behind a state
    "lm_head_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "key_multiplier": 1.0,
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 1.0,
    "ssm_in_multiplier": 1.0,
    "ssm_out_multiplier": 1.0,
    "ssm_multipliers": None,  # 1 of gates, values, keys, queries and decays
    "mlp_multipliers": None,  # 1 of gates and of outputs
}
ONLY: Mapping[str, tuple[Any, ...]] = {
    **MAMBA_ONLY,
    "hidden_act": ("silu",),
    # their biases have other multipliers than their products
    **dict.fromkeys(("attention_bias", "mamba_proj_bias"), (False,)),
}
SILENT = MAMBA_SILENT | {
    *("layers_block_type", "num_logits_to_keep", "time_step_max", "time_step_min"),
    *("time_step_floor", "mamba_use_mlp"),
}
_LAYER = "model.layers.{i}."
_WEIGHTS: Templates = {
    **WEIGHTS,
    **MAMBA_WEIGHTS,
    "final_norm": "model.final_layernorm",
    "layers.mlp_norm": _LAYER + "pre_ff_layernorm",
    **{f"layers.{part}": f"{_LAYER}feed_forward.{part}_proj" for part in ("gate", "up", "down")},
}


def _multipliers(fields: Mapping[str, Any], field: str, count: int) -> list[float]:
    """Return the numbers of a field, or as many ones.

    Raises:
        InputError: It is no list of as many numbers above 0.
    """
    given = fields[field]
    if given is None:
        return [1.0] * count
    if not isinstance(given, list) or len(given) != count:
        raise InputError(
            f"config field '{field}' = {brief(given)} must be a list of {count} numbers"
        )
    for each in given:
        check_number(field, each)
    return given


def _state(fields: Mapping[str, Any]) -> Recurrence:
    inner = fields["mamba_d_ssm"] or fields["mamba_expand"] * fields["hidden_size"]
    heads, size = fields["mamba_n_heads"], fields["mamba_d_head"]
    size = inner // heads if size == "auto" else size
    found = mamba_state({**fields, "mamba_d_head": size, "mamba_expand": None})
    if size * heads != inner:
        raise InputError(
            f"config field 'mamba_d_head' = {size} times 'mamba_n_heads' = {heads} must be "
            f"'mamba_d_ssm' = {inner}"
        )
    into = fields["ssm_in_multiplier"]
    gates, values, keys, queries, decays = _multipliers(fields, "ssm_multipliers", 5)
    return replace(
        found,
        norm_size=found.norm_size if fields["mamba_rms_norm"] else 0,
        gates_first=not fields["mamba_norm_before_gate"],
        query_scale=into * queries,
        key_scale=into * keys,
        value_scale=into * values,
        gate_scale=into * gates,
        decay_scale=into * decays,
        output_scale=fields["ssm_out_multiplier"],
    )


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(
        raw, DEFAULTS, ("num_key_value_heads", "mamba_d_ssm"), only=ONLY, silent=SILENT
    )
    shared = sizes(fields, head_size(fields, whole=True))
    gates, outputs = _multipliers(fields, "mlp_multipliers", 2)
    into = fields["attention_in_multiplier"]
    scale = shared["attention_scale"] * into * into * fields["key_multiplier"]
    return DecoderConfig(
        **shared | {"attention_scale": scale},
        layers=(LayerConfig(mixer="both"),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        embed_scale=fields["embedding_multiplier"],
        rounds_embed_scale=False,
        logit_scale=fields["lm_head_multiplier"],
        attention_output_scale=into * fields["attention_out_multiplier"],
        mlp_gate_scale=gates,
        mlp_output_scale=outputs,
        biases=llama_biases(fields) | frozenset(("mix_out",) if fields["projectors_bias"] else ()),
        state=_state(fields),
    )


FALCON_H1 = Family("falcon_h1", _read, _WEIGHTS, changes=MAMBA_CHANGES, called=MAMBA_CALLED)
