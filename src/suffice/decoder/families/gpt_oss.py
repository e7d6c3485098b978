"""gpt-oss: windows in every other layer, a spare logit for each head, experts in 4-bit floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.families.mixtral import SILENT as ROUTERS
from suffice.decoder.fields import head_size, layers_by_kind, read_fields, under_own_name
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.routing import Experts

_YARN = {  # unless a file says otherwise
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 150_000.0,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,  # of an expert
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": 128,
    "layer_types": None,  # every second is global
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "attention_bias": True,
}
ONLY = {  # what the activation `clamped_swish` has
    "hidden_act": ("silu",),
    "swiglu_alpha": (1.702,),
    "swiglu_limit": (7.0,),
}
# `experts_per_token` says again what `num_experts_per_tok` does
SILENT = ROUTERS | {"experts_per_token", "initial_context_length"}
_LAYER = "model.layers.{i}."
_EXPERTS = _LAYER + "mlp.experts."
_OWN: Templates = {
    **WEIGHTS,
    "layers.spare": _LAYER + "self_attn.sinks",
    "layers.router": _LAYER + "mlp.router",
}


def _experts(*, transposed: bool) -> Templates:
    """Return the names of experts' matrices; each row of gate has one of up below it."""
    return {
        **stored_together(
            _EXPERTS + "gate_up_proj",
            "expert_gate",
            "expert_up",
            by_expert=True,
            alternating=True,
            transposed=transposed,
        ),
        **stored_together(
            _EXPERTS + "down_proj", "expert_down", by_expert=True, transposed=transposed
        ),
    }


# Weights whose stored names do not end with `.weight`.
_CALLED = (
    (r"(.*\.self_attn\.sinks)", r"\1.weight"),
    (r"(.*\.mlp\.experts\.(?:gate_up|down)_proj)_(blocks|scales|bias)", r"\1.\2"),
    (r"(.*\.mlp\.experts\.(?:gate_up|down)_proj)", r"\1.weight"),
)


def _read(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "num_local_experts", "num_experts")
    fields = read_fields(raw, DEFAULTS, ("sliding_window",), ONLY, SILENT)
    if fields["rope_parameters"] is None and not fields["rope_scaling"]:
        fields["rope_parameters"] = _YARN
    attention = "qkvo" if fields["attention_bias"] else ""
    experts = ("router", "expert_gate", "expert_up", "expert_down")
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=layers_by_kind(
            fields,
            lambda index: index % 2 == 0,
            sliding=LayerConfig(fields["sliding_window"]),
            full=LayerConfig(None),
        ),
        activation="clamped_swish",
        ropes=(read_rope(fields),),
        spare_logits=True,
        biases=frozenset((*attention, *experts)),
        experts=Experts(
            fields["num_local_experts"],
            fields["num_experts_per_tok"],
            fields["intermediate_size"],
            ("top", "softmax"),
        ),
    )


GPT_OSS = Family(
    "gpt_oss",
    _read,
    {**_OWN, **_experts(transposed=True)},
    called=_CALLED,
    in_codes={**_OWN, **_experts(transposed=False)},
)
