"""Hunyuan: Llama with norms of queries and keys after their rotation; or with experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.checks import check_number
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, read_fields, under_own_name
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.routing import Experts
from suffice.errors import InputError

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 290943,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
MOE_DEFAULTS: Mapping[str, Any] = {**DEFAULTS, "num_experts": 1, "moe_topk": 1}
SILENT = frozenset({"eod_token_id", "output_router_logits"})
MOE_ONLY = {  # of published files
    "cla_share_factor": (1, 2),  # of layers that share keys, which use_cla says
    "norm_topk_prob": (True,),
    "use_cla": (False,),
    "use_mixed_mlp_moe": (True,),
    "use_qk_norm": (True,),
}
MOE_SILENT = SILENT | {"moe_intermediate_size", "num_shared_expert", "moe_layer_num_skipped"}
_PARTS = ("gate", "up", "down")
_WEIGHTS = {
    **WEIGHTS,
    "layers.q_norm": "model.layers.{i}.self_attn.query_layernorm",
    "layers.k_norm": "model.layers.{i}.self_attn.key_layernorm",
}
_MLP = "model.layers.{i}.mlp."
_MOE_WEIGHTS = {
    **_WEIGHTS,
    "layers.router": _MLP + "gate.wg",
    **{f"layers.expert_{part}": f"{_MLP}experts.{{e}}.{part}_proj" for part in _PARTS},
    **{f"layers.shared_{part}": f"{_MLP}shared_mlp.{part}_proj" for part in _PARTS},
}
_NOTES = ("alpha", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim")


def _stretched(fields: dict[str, Any], size: int) -> dict[str, Any]:
    """Return fields whose rotation has the base that a fixed `alpha` makes: theta a^(D/(D-2))."""
    for name in ("rope_scaling", "rope_parameters"):
        given = fields[name]
        if not isinstance(given, Mapping) or not given.get("alpha"):
            continue
        check_number(f"{name}.alpha", given["alpha"])
        theta = given.get("rope_theta", fields["rope_theta"])
        check_number("rope_theta", theta, above=1)
        plain = {key: value for key, value in given.items() if key not in _NOTES}
        plain |= {"rope_type": "default", "type": "default"}
        if size < 3:
            raise InputError(
                f"config field 'head_dim' = {size} must be at least 3 with '{name}.alpha'"
            )
        plain["rope_theta"] = theta * given["alpha"] ** (size / (size - 2))
        return fields | {name: plain}
    return fields


def _read(raw: dict[str, Any]) -> DecoderConfig:
    return _config(read_fields(raw, DEFAULTS, silent=SILENT))


def _read_moe(raw: dict[str, Any]) -> DecoderConfig:
    for name in ("num_experts", "moe_topk"):
        given = raw.get(name)
        if isinstance(given, list) and given and all(each == given[0] for each in given):
            raw = raw | {name: given[0]}  # one for each layer
    raw = under_own_name(raw, "num_experts", "num_local_experts")
    raw = under_own_name(raw, "moe_topk", "num_experts_per_tok")
    fields = read_fields(raw, MOE_DEFAULTS, only=MOE_ONLY, silent=MOE_SILENT)
    width = fields["intermediate_size"]
    steps = ("softmax", "top", "normalize")
    experts = Experts(fields["num_experts"], fields["moe_topk"], width, steps, shared=width)
    return replace(_config(fields), experts=experts)


def _config(fields: dict[str, Any]) -> DecoderConfig:
    size = head_size(fields)
    return DecoderConfig(
        **sizes(fields, size),
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(_stretched(fields, size)),),
        qk_norm=True,
        late_qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


HUNYUAN = Family("hunyuan_v1_dense", _read, _WEIGHTS)
HUNYUAN_MOE = Family("hunyuan_v1_moe", _read_moe, _MOE_WEIGHTS)
