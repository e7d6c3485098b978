"""Qwen3-Next and Qwen3.5: three of four layers keep states by the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.bamba import MAMBA_CALLED
from suffice.decoder.families.llama import sizes
from suffice.decoder.families.qwen import QWEN3, QWEN3_DEFAULTS
from suffice.decoder.families.qwen_moe import QWEN2_MOE, SILENT, experts
from suffice.decoder.families.qwen_moe import QWEN3_DEFAULTS as QWEN3_MOE_DEFAULTS
from suffice.decoder.fields import (
    activation,
    head_size,
    layers_of_kinds,
    layers_with_experts,
    read_fields,
)
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import of_one_axis, read_rope
from suffice.decoder.states import Recurrence

_STATE: Mapping[str, Any] = {
    "head_dim": 256,
    "layer_types": None,  # attention in every `full_attention_interval`th layer
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "partial_rotary_factor": 0.25,
}
_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers")
_STEPS = ("intermediate_size", "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob")
NEXT_DEFAULTS: Mapping[str, Any] = {
    **{name: each for name, each in QWEN3_MOE_DEFAULTS.items() if name not in _WINDOWS},
    **_STATE,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
}
DENSE_DEFAULTS: Mapping[str, Any] = {
    **{name: each for name, each in QWEN3_DEFAULTS.items() if name not in _WINDOWS},
    **_STATE,
    "vocab_size": 248320,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
MOE_DEFAULTS: Mapping[str, Any] = {
    **{name: each for name, each in NEXT_DEFAULTS.items() if name not in _STEPS},
    "vocab_size": 248320,
    "num_hidden_layers": 40,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
_ONLY = {"attention_bias": (False,)}
_DELTA = "model.layers.{i}.linear_attn."


def chosen_rows(config: DecoderConfig, part: str) -> tuple[int, ...]:
    """Return the stored rows of a part of `in_proj_qkvz` or `in_proj_ba`.

    The rows of each group of keys are together: its queries, keys, values and gates, or its
    strengths and decays.
    """
    own = config.state
    assert isinstance(own, Recurrence)
    each = own.heads // own.key_heads
    values = each * own.value_size
    if part in ("strength", "decay"):
        runs, size = [(each if part == "decay" else 0, each)], 2 * each
    else:
        size = 2 * own.key_size + 2 * values
        runs = [(0, own.key_size), (own.key_size, own.key_size), (2 * own.key_size, values)]
        if part == "out_gate":
            runs = [(size - values, values)]
    groups = np.arange(own.key_heads)[:, None] * size
    found = [(groups + first + np.arange(count)).reshape(-1) for first, count in runs]
    return tuple(np.concatenate(found).tolist())


_GATED: Templates = {
    **stored_together("model.layers.{i}.self_attn.q_proj", "q", "attn_gate", by_head=True),
    "layers.convolution": _DELTA + "conv1d",
    "layers.rates": _DELTA + "A_log",
    "layers.step_bias": _DELTA + "dt_bias",
    "layers.mix_norm": _DELTA + "norm",
    "layers.mix_out": _DELTA + "out_proj",
}
_NEXT_WEIGHTS: Templates = {
    **QWEN2_MOE.weights,
    **_GATED,
    **stored_together(_DELTA + "in_proj_qkvz", "mixed", "out_gate", rows=chosen_rows),
    **stored_together(_DELTA + "in_proj_ba", "strength", "decay", rows=chosen_rows),
}
_APART: Templates = {
    **_GATED,
    "layers.mixed": _DELTA + "in_proj_qkv",
    "layers.out_gate": _DELTA + "in_proj_z",
    "layers.strength": _DELTA + "in_proj_b",
    "layers.decay": _DELTA + "in_proj_a",
}
_MTP = (r"mtp\..*",)  # drafts further tokens


def _read_next(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, NEXT_DEFAULTS, only=_ONLY, silent=SILENT)
    found = _config(fields)
    return replace(
        found,
        layers=layers_with_experts(fields, found.layers),
        experts=experts(fields, fields["shared_expert_intermediate_size"]),
    )


def _read_moe(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(of_one_axis(raw), MOE_DEFAULTS, only=_ONLY, silent=SILENT)
    fields |= {"norm_topk_prob": True}
    shared = fields["shared_expert_intermediate_size"]
    found = _config(fields | {"intermediate_size": shared})
    return replace(found, experts=experts(fields, shared))


def _read_dense(raw: dict[str, Any]) -> DecoderConfig:
    return _config(read_fields(of_one_axis(raw), DENSE_DEFAULTS, only=_ONLY))


def delta_rule(
    fields: Mapping[str, Any],
    heads: tuple[int, int],
    head_sizes: tuple[int, int],
    norm_eps: float,
    **own: Any,
) -> Recurrence:
    """Return a recurrence by the gated delta rule.

    `heads` are those of values and of keys, `head_sizes` those of a key and of a value. `own` is
    what a family has otherwise.
    """
    return Recurrence(
        fields["hidden_size"],
        *heads,
        *head_sizes,
        fields["linear_conv_kernel_dim"],
        corrects=True,
        order=("queries", "keys", "values"),
        norm_size=head_sizes[1],
        norm_eps=norm_eps,
        shared_norm=True,
        gates_first=False,
        **own,
    )


def apart_weights(layer: str) -> dict[str, str]:
    """Return the names of a layer with queries, keys and values apart, which begin with `layer`."""
    parts = {"queries": "q", "keys": "k", "values": "v"}
    return {
        **{f"layers.mix_{part}": f"{layer}{own}_proj" for part, own in parts.items()},
        **{f"layers.{part}_convolution": f"{layer}{own}_conv1d" for part, own in parts.items()},
        "layers.strength": layer + "b_proj",
        "layers.rates": layer + "A_log",
        "layers.step_bias": layer + "dt_bias",
        "layers.mix_norm": layer + "o_norm",
        "layers.mix_out": layer + "o_proj",
    }


def _config(fields: Mapping[str, Any]) -> DecoderConfig:
    every = fields["full_attention_interval"]
    keys, values = fields["linear_key_head_dim"], fields["linear_value_head_dim"]
    state = delta_rule(
        fields,
        (fields["linear_num_value_heads"], fields["linear_num_key_heads"]),
        (keys, values),
        fields["rms_norm_eps"],
    )
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=layers_of_kinds(
            fields,
            lambda index: "linear_attention" if (index + 1) % every else "full_attention",
            {"full_attention": LayerConfig(), "linear_attention": LayerConfig(mixer="state")},
        ),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields, partial=True),),
        qk_norm=True,
        output_gate=True,
        state=state,
    )


def _family(
    name: str, read: Callable[[dict[str, Any]], DecoderConfig], weights: Templates
) -> Family:
    changes = {"rates": np.exp}
    return Family(name, read, weights, 1.0, changes, surplus=_MTP, called=MAMBA_CALLED)


QWEN3_NEXT = _family("qwen3_next", _read_next, _NEXT_WEIGHTS)
QWEN3_5 = _family("qwen3_5_text", _read_dense, {**QWEN3.weights, **_APART})
QWEN3_5_MOE = _family("qwen3_5_moe_text", _read_moe, {**QWEN2_MOE.weights, **_APART})
