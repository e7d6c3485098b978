"""GLM-4 MoE (GLM-4.5 to 4.7): experts by the sigmoid of their scores, with a bias of the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.families.mixtral import SILENT as SILENT_OF_EXPERTS
from suffice.decoder.families.qwen import QK_NORMS
from suffice.decoder.fields import activation, head_size, read_fields, under_own_name
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.routing import Experts

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "partial_rotary_factor": 0.5,
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,  # of q, k and v
    "use_qk_norm": False,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}
ONLY = {"n_group": (1,), "topk_group": (1,)}
SILENT = SILENT_OF_EXPERTS | {"num_mtp_layers", "num_nextn_predict_layers"}
_MLP = "model.layers.{i}.mlp."
_PARTS = ("gate", "up", "down")
MOE_WEIGHTS = {
    **WEIGHTS,
    **QK_NORMS,
    "layers.router": _MLP + "gate",
    "layers.choice": _MLP + "gate.choice",
    **{f"layers.expert_{part}": f"{_MLP}experts.{{e}}.{part}_proj" for part in _PARTS},
    **{f"layers.shared_{part}": f"{_MLP}shared_experts.{part}_proj" for part in _PARTS},
}
MOE_CALLED = ((r"(.*\.mlp\.gate)\.e_score_correction_bias", r"\1.choice.weight"),)


def _read(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "n_routed_experts", "num_local_experts")
    fields = read_fields(raw, DEFAULTS, only=ONLY, silent=SILENT)
    dense = fields["first_k_dense_replace"]
    inner = fields["moe_intermediate_size"]
    layers = tuple(
        replace(LayerConfig(), dense=index < dense) for index in range(fields["num_hidden_layers"])
    )
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=layers,
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields, partial=True),),
        qk_norm=fields["use_qk_norm"],
        biases=frozenset("qkv" if fields["attention_bias"] else ""),
        experts=Experts(
            fields["n_routed_experts"],
            fields["num_experts_per_tok"],
            inner,
            ("sigmoid", "top", *(("normalize",) if fields["norm_topk_prob"] else ())),
            scale=fields["routed_scaling_factor"],
            shared=inner * fields["n_shared_experts"],
            biased=True,
        ),
    )


GLM4_MOE = Family("glm4_moe", _read, MOE_WEIGHTS, called=MOE_CALLED, predicts=True)
