"""Mixtral: Mistral's layers, with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import SURPLUS, sizes
from suffice.decoder.families.llama import WEIGHTS as LLAMA_WEIGHTS
from suffice.decoder.fields import activation, head_size, read_fields, under_own_name
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.routing import Experts

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 1_000_000.0,
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
# of training
SILENT = frozenset({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"})
_EXPERT = "model.layers.{i}.block_sparse_moe.experts.{e}."
WEIGHTS = {
    **LLAMA_WEIGHTS,
    "layers.router": "model.layers.{i}.block_sparse_moe.gate",
    "layers.expert_gate": _EXPERT + "w1",
    "layers.expert_up": _EXPERT + "w3",
    "layers.expert_down": _EXPERT + "w2",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "num_local_experts", "num_experts")
    fields = read_fields(raw, DEFAULTS, silent=SILENT)
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=(LayerConfig(fields["sliding_window"]),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        experts=Experts(
            fields["num_local_experts"],
            fields["num_experts_per_tok"],
            fields["intermediate_size"],
            ("softmax", "top", "normalize"),
        ),
    )


MIXTRAL = Family("mixtral", _read, WEIGHTS, surplus=SURPLUS)
