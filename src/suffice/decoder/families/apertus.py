"""Apertus: no gate, an activation with learned parameters, norms of query and key heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.families.qwen import QK_NORMS
from suffice.decoder.fields import head_size, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 12_000_000.0,
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
ONLY = {"hidden_act": ("xielu",)}
_ROPE: Mapping[str, Any] = {  # of a file that says nothing
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_ACT = "model.layers.{i}.mlp.act_fn."
_WEIGHTS: Templates = {
    **{name: stored for name, stored in WEIGHTS.items() if name != "layers.gate"},
    **QK_NORMS,
    "layers.attn_norm": "model.layers.{i}.attention_layernorm",
    "layers.mlp_norm": "model.layers.{i}.feedforward_layernorm",
    "layers.curve_positive": _ACT + "alpha_p",
    "layers.curve_negative": _ACT + "alpha_n",
    **stored_together(_ACT + "beta", "curve_beta", dims=()),
    **stored_together(_ACT + "eps", "curve_eps", dims=()),
}
_CALLED = ((r"(.*\.act_fn\.(alpha_p|alpha_n|beta|eps))", r"\1.weight"),)


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, only=ONLY)
    if fields["rope_parameters"] is None and fields["rope_scaling"] is None:
        fields["rope_parameters"] = _ROPE
    return DecoderConfig(
        **sizes(fields, head_size(fields, whole=True)) | {"gated": False},
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation="xielu",
        ropes=(read_rope(fields),),
        qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


APERTUS = Family("apertus", _read, _WEIGHTS, called=_CALLED)
