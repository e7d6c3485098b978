"""Phi 3.5 MoE: LayerNorm, biases, and experts that are chosen in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.checks import check_number
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import sizes
from suffice.decoder.families.mixtral import DEFAULTS as MIXTRAL_DEFAULTS
from suffice.decoder.families.mixtral import WEIGHTS
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rope_fields import read_rope
from suffice.decoder.routing import Experts
from suffice.errors import InputError, brief

DEFAULTS: Mapping[str, Any] = {
    **MIXTRAL_DEFAULTS,
    "vocab_size": 32064,
    "intermediate_size": 6400,
    "num_local_experts": 16,
    "router_jitter_noise": 0.01,
    "attention_bias": False,
    "lm_head_bias": False,
}
ONLY = {"num_experts_per_tok": (2,)}  # whatever it says, two are chosen
SILENT = frozenset({"input_jitter_noise", "output_router_logits", "router_aux_loss_coef"})
_SCALES = ("short_mscale", "long_mscale")  # of longrope's table, for short and long texts


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, only=ONLY, silent=SILENT)
    jitter = fields["router_jitter_noise"]
    check_number("router_jitter_noise", jitter)
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(fields[name], Mapping):
            fields[name] = _with_scale(fields[name], f"{name}.")
    biases = (*"qkvo",) if fields["attention_bias"] else ()
    return DecoderConfig(
        **sizes(fields, head_size(fields)) | {"norm": "layer"},
        layers=(LayerConfig(fields["sliding_window"]),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        biases=frozenset((*biases, *(("head",) if fields["lm_head_bias"] else ()))),
        experts=Experts(
            fields["num_local_experts"],
            2,
            fields["intermediate_size"],
            ("in_turn",),
            margin=2 * float(jitter),
        ),
    )


def _with_scale(given: Mapping[str, Any], within: str) -> Mapping[str, Any]:
    """Return an object of a rotation whose factor of the table has its usual name."""
    short, long = (given.get(name) for name in _SCALES)
    if short is None and long is None:
        return given
    if short != long:
        raise InputError(
            f"config field '{within}long_mscale' = {brief(long)} must equal 'short_mscale' = "
            f"{brief(short)}"
        )
    rest = {name: value for name, value in given.items() if name not in _SCALES}
    return rest | {"attention_factor": short}


PHI_MOE = Family("phimoe", _read, WEIGHTS)
