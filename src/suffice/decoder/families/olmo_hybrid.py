"""OLMo hybrid: OLMo's layers of attention among layers with states by the gated delta rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.bamba import MAMBA_CALLED
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.families.olmo import DEFAULTS as OLMO_DEFAULTS
from suffice.decoder.families.olmo import OUTPUT_NORMS
from suffice.decoder.families.qwen_next import apart_weights, delta_rule
from suffice.decoder.fields import activation, head_size, layers_of_kinds, read_fields
from suffice.decoder.name_maps import Templates
from suffice.decoder.rope_fields import read_rope
from suffice.decoder.states import Recurrence

DEFAULTS: Mapping[str, Any] = {
    **{name: each for name, each in OLMO_DEFAULTS.items() if name != "head_dim"},
    "vocab_size": 100352,
    "hidden_size": 3840,
    "num_attention_heads": 30,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "layer_types": None,  # attention in every fourth layer, or the last
    "linear_num_key_heads": None,  # num_attention_heads, and so the values'
    "linear_num_value_heads": None,
    "linear_key_head_dim": None,  # 3/4 of hidden_size by the heads, and twice that for values
    "linear_value_head_dim": None,
    "linear_conv_kernel_dim": 4,
    "linear_allow_neg_eigval": True,
}
SILENT = {  # of how weights begin
    *("linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max"),
    "linear_dt_min",
}
_EPS = 1e-5  # of the outputs' norm
_LAYER = "model.layers.{i}."
_DELTA = _LAYER + "linear_attn."
_WEIGHTS: Templates = {
    **WEIGHTS,
    **OUTPUT_NORMS,
    **apart_weights(_DELTA),
    "layers.decay": _DELTA + "a_proj",
    "layers.out_gate": _DELTA + "g_proj",
}
_CALLED = (
    *MAMBA_CALLED,
    (r"(.*\.)attention_layer_norm(\..*)", r"\1input_layernorm\2"),
    (r"(.*\.)feedforward_layer_norm(\..*)", r"\1post_attention_layernorm\2"),
)
_KINDS = {
    "full_attention": LayerConfig(placement="output"),
    "linear_attention": LayerConfig(mixer="state"),
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, silent=SILENT)
    last = fields["num_hidden_layers"] - 1

    def kind(index: int) -> str:
        attends = index % 4 == 3 or (last < 3 and index == last)
        return "full_attention" if attends else "linear_attention"

    layers = layers_of_kinds(fields, kind, _KINDS)
    ropes = (read_rope(fields),) if _rotates(raw) else ()
    if not ropes:
        layers = tuple(replace(each, rope=None) for each in layers)
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=layers,
        activation=activation(fields, "hidden_act"),
        ropes=ropes,
        qk_norm=True,
        whole_qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
        state=_state(fields),
    )


def _rotates(raw: Mapping[str, Any]) -> bool:
    """Return whether queries and keys are rotated: not if the base of a rotation is null."""
    given = raw.get("rope_parameters")
    return not (isinstance(given, Mapping) and given.get("rope_theta", 0) is None)


def _state(fields: Mapping[str, Any]) -> Recurrence:
    key_heads = fields["linear_num_key_heads"] or fields["num_attention_heads"]
    keys = fields["linear_key_head_dim"] or int(0.75 * fields["hidden_size"] / key_heads)
    values = fields["linear_value_head_dim"] or 2 * keys
    return delta_rule(
        fields,
        (fields["linear_num_value_heads"] or fields["num_attention_heads"], key_heads),
        (keys, values),
        _EPS,
        apart=True,
        most_strength=2.0 if fields["linear_allow_neg_eigval"] else 1.0,
    )


OLMO_HYBRID = Family(
    "olmo_hybrid",
    _read,
    _WEIGHTS,
    changes={"rates": np.exp},
    called=_CALLED,
)
