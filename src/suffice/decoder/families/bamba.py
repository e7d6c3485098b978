"""Bamba: layers of attention among layers that keep states by Mamba-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suffice.decoder.checks import check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import DEFAULTS as LLAMA_DEFAULTS
from suffice.decoder.families.llama import WEIGHTS, llama_biases, sizes
from suffice.decoder.fields import activation, head_size, read_fields, some_layers
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import read_rope
from suffice.decoder.states import Recurrence
from suffice.errors import InputError

MAMBA_DEFAULTS: Mapping[str, Any] = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",  # mamba_expand * hidden_size // mamba_n_heads
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_ENDLESS = (float("inf"), {"__float__": "Infinity"})
MAMBA_ONLY: Mapping[str, tuple[Any, ...]] = {
    "time_step_limit": (None, *([0.0, end] for end in _ENDLESS)),
}
MAMBA_SILENT = frozenset({"mamba_chunk_size"})  # of a kernel
DEFAULTS: Mapping[str, Any] = {
    **LLAMA_DEFAULTS,
    **MAMBA_DEFAULTS,
    "vocab_size": 128000,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "attn_layer_indices": None,  # of the layers of attention
}
SILENT = MAMBA_SILENT | {"num_logits_to_keep", "z_loss_coefficient"}


def mamba_weights(mixer: str) -> Templates:
    """Return the names of a layer of Mamba-2 whose own begin with `mixer`."""
    return {
        **stored_together(mixer + "in_proj", "out_gate", "mixed", "decay"),
        "layers.convolution": mixer + "conv1d",
        "layers.rates": mixer + "A_log",
        "layers.step_bias": mixer + "dt_bias",
        "layers.skips": mixer + "D",
        "layers.mix_norm": mixer + "norm",
        "layers.mix_out": mixer + "out_proj",
    }


MAMBA_WEIGHTS = mamba_weights("model.layers.{i}.mamba.")
MAMBA_CALLED = ((r"(.*\.)(A_log|dt_bias|D)", r"\1\2.weight"),)
MAMBA_CHANGES = {"rates": np.exp}
_LAYER = "model.layers.{i}."
_WEIGHTS: Templates = {
    **WEIGHTS,
    **MAMBA_WEIGHTS,
    "final_norm": "model.final_layernorm",
    "layers.mlp_norm": _LAYER + "pre_ff_layernorm",
    "layers.gate": _LAYER + "feed_forward.gate_proj",
    "layers.up": _LAYER + "feed_forward.up_proj",
    "layers.down": _LAYER + "feed_forward.down_proj",
}


def mamba_state(fields: Mapping[str, Any], least_step: float = 0.0) -> Recurrence:
    """Read the layers of Mamba-2; without `mamba_expand` any number of heads will do.

    Raises:
        InputError: Sizes that do not fit to each other.
    """
    width, heads = fields["hidden_size"], fields["mamba_n_heads"]
    expand, size = fields["mamba_expand"], fields["mamba_d_head"]
    if size == "auto":
        size = expand * width // heads
    check_size("mamba_d_head", size)
    inner = heads * size if expand is None else expand * width
    if size * heads != inner:
        raise InputError(
            f"config field 'mamba_d_head' = {size} times 'mamba_n_heads' = {heads} must be "
            f"'mamba_expand' times 'hidden_size' = {inner}"
        )
    return Recurrence(
        width,
        heads=heads,
        key_heads=fields["mamba_n_groups"],
        key_size=fields["mamba_d_state"],
        value_size=size,
        taps=fields["mamba_d_conv"],
        corrects=False,
        order=("values", "keys", "queries"),
        norm_size=inner // fields["mamba_n_groups"],
        norm_eps=fields["rms_norm_eps"],
        shared_norm=False,
        gates_first=True,
        biased=fields["mamba_conv_bias"],
        skips=True,
        least_step=least_step,
    )


def mamba_biases(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return which matrices of layers of Mamba-2 have a bias."""
    named = ("out_gate", "mixed", "decay", "mix_out") if fields["mamba_proj_bias"] else ()
    return frozenset(named)


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("num_key_value_heads",), only=MAMBA_ONLY, silent=SILENT)
    attends = some_layers(fields, "attn_layer_indices") or ()
    return DecoderConfig(
        **sizes(fields, head_size(fields, whole=True)),
        layers=tuple(
            LayerConfig(mixer="attention" if index in attends else "state")
            for index in range(fields["num_hidden_layers"])
        ),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields, partial=True),),
        biases=llama_biases(fields) | mamba_biases(fields),
        state=mamba_state(fields),
    )


BAMBA = Family("bamba", _read, _WEIGHTS, changes=MAMBA_CHANGES, called=MAMBA_CALLED)
