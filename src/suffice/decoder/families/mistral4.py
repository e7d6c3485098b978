"""Mistral 4, text: attention to joint rows, experts, and scaled queries of far positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import Family
from suffice.decoder.families.deepseek import (
    LATENT_CALLED,
    LATENT_DEFAULTS,
    LATENT_WEIGHTS,
    NULLABLE,
    SILENT,
    follows,
    grouped,
    latent_layers,
    latent_sizes,
    read_latent,
)
from suffice.decoder.families.mistral import growing_rope
from suffice.decoder.fields import read_fields, under_own_name
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.routing import Experts

DEFAULTS: Mapping[str, Any] = {
    **LATENT_DEFAULTS,
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 64,
    "max_position_embeddings": 1048576,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 0,
    "norm_topk_prob": True,
    "rope_interleave": True,
}
_ROPE: Mapping[str, Any] = {  # of a file that says nothing
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_PART = "partial_rotary_factor"
_EXPERTS = "model.layers.{i}.mlp.experts."
_WEIGHTS: Templates = {
    **LATENT_WEIGHTS,
    **stored_together(_EXPERTS + "gate_up_proj", "expert_gate", "expert_up", by_expert=True),
    **stored_together(_EXPERTS + "down_proj", "expert_down", by_expert=True),
}
_CALLED = (*LATENT_CALLED, (r"(.*\.mlp\.experts\.(?:gate_up|down)_proj)", r"\1.weight"))


def _without_part(fields: Mapping[str, Any], part: float) -> dict[str, Any]:
    """Return the fields without the part of a head that is rotated, which follows from sizes."""
    given = dict(fields)
    for name in ("rope_parameters", "rope_scaling"):
        own = given[name]
        if isinstance(own, Mapping) and _PART in own:
            follows(f"{name}.{_PART}", own[_PART], part)
            given[name] = {key: value for key, value in own.items() if key != _PART}
    follows(_PART, given[_PART], part)
    return given | {_PART: None}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "n_routed_experts", "num_local_experts")
    fields = read_fields(raw, DEFAULTS, NULLABLE, silent=SILENT)
    latent = read_latent(fields, adjacent=fields["rope_interleave"])
    follows("head_dim", fields["head_dim"], latent.query)
    fields = _without_part(fields, latent.rotated / latent.query) | {"head_dim": None}
    rope, growth = growing_rope(fields, _ROPE)
    choice = grouped(fields, "best_pairs")
    normalize = ("normalize",) if fields["norm_topk_prob"] else ()
    inner = fields["moe_intermediate_size"]
    return DecoderConfig(
        **latent_sizes(fields, latent, rope),
        layers=latent_layers(fields["num_hidden_layers"], fields["first_k_dense_replace"]),
        query_growth=growth,
        experts=Experts(
            fields["n_routed_experts"],
            fields["num_experts_per_tok"],
            inner,
            ("softmax", *choice.pop("limit"), "top", *normalize),
            scale=fields["routed_scaling_factor"],
            shared=inner * fields["n_shared_experts"],
            **choice,
        ),
    )


MISTRAL4 = Family("mistral4", _read, _WEIGHTS, called=_CALLED)
