"""DeepSeek V2 and V3: attention to joint rows, and experts chosen within groups of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from suffice.decoder.checks import check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.glm_moe import MOE_CALLED as CALLED_OF_EXPERTS
from suffice.decoder.families.glm_moe import MOE_WEIGHTS
from suffice.decoder.families.llama import SURPLUS
from suffice.decoder.families.mixtral import SILENT as SILENT_OF_EXPERTS
from suffice.decoder.fields import activation, read_fields, under_own_name
from suffice.decoder.latent import Latent
from suffice.decoder.name_maps import Templates, stored_by_head
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.rotation import Rope
from suffice.decoder.routing import Experts
from suffice.errors import InputError, brief

# Fields that all families with joint rows read; transformers also writes the two sizes at the end.
LATENT_DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,  # of the matrices into and out of the block
    "num_key_value_heads": None,  # num_attention_heads
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_head_dim": None,
    "head_dim": None,
}
NULLABLE = ("q_lora_rank", "num_key_value_heads")  # queries of the input itself; all heads
V2_DEFAULTS: Mapping[str, Any] = {
    **LATENT_DEFAULTS,
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "n_group": None,
    "topk_group": None,
    "num_experts_per_tok": None,  # has to be given
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
    "topk_method": "greedy",
}
V3_DEFAULTS: Mapping[str, Any] = {
    **LATENT_DEFAULTS,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "max_position_embeddings": 4096,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "rope_interleave": True,
}
# of training, of how others run the model, and of layers that draft
SILENT = SILENT_OF_EXPERTS | {
    *("ep_size", "seq_aux", "num_mtp_layers", "num_nextn_predict_layers"),
}
DENSE_ONLY = {"mlp_bias": (False,)}
_ONLY = {"moe_layer_freq": (1,)}
V2_ONLY = {
    **_ONLY,
    **DENSE_ONLY,
    "scoring_func": ("softmax",),
    "norm_topk_prob": (False, None),  # transformers does not read it
    "topk_method": ("greedy", "group_limited_greedy"),
}
V3_ONLY = {**_ONLY, "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}
_ATTENTION = "model.layers.{i}.self_attn."
_APART = ("layers.k", "layers.v", "layers.k_norm")  # of keys and values that are apart
LATENT_WEIGHTS: Templates = {
    **{name: stored for name, stored in MOE_WEIGHTS.items() if name not in _APART},
    "layers.q_low": _ATTENTION + "q_a_proj",
    "layers.q_norm": _ATTENTION + "q_a_layernorm",
    "layers.q": _ATTENTION + "q_b_proj",
    "layers.kv": _ATTENTION + "kv_a_proj_with_mqa",
    "layers.kv_norm": _ATTENTION + "kv_a_layernorm",
    **stored_by_head(_ATTENTION + "kv_b_proj", "key_up", "value_up"),
}
# queries that are made in one step have another name than those that are made in two
LATENT_CALLED = ((r"(.*\.self_attn)\.q_proj\.weight", r"\1.q_b_proj.weight"),)


def read_latent(fields: Mapping[str, Any], *, adjacent: bool) -> Latent:
    """Read the sizes of a model's latent attention; `adjacent`: see `Latent`.

    Raises:
        InputError: A size that is not supported, or fields that contradict each other.
    """
    latent = Latent(
        fields["kv_lora_rank"],
        fields["qk_nope_head_dim"],
        fields["qk_rope_head_dim"],
        fields["v_head_dim"],
        fields["q_lora_rank"] or 0,
        adjacent=adjacent,
    )
    heads = fields["num_attention_heads"]
    follows("qk_head_dim", fields["qk_head_dim"], latent.query)
    follows("num_key_value_heads", fields["num_key_value_heads"], heads)
    return latent


def follows(field: str, given: Any, size: float) -> None:
    """Refuse a value of a field that differs from what follows from others.

    Raises:
        InputError: It does.
    """
    if given not in (None, size):
        raise InputError(
            f"config field '{field}' = {brief(given)} is not supported; supported: {size:g}, which "
            "follows from other fields"
        )


def latent_sizes(fields: Mapping[str, Any], latent: Latent, rope: Rope) -> dict[str, Any]:
    """Return the decoder's fields that all families with joint rows share.

    Raises:
        InputError: `head_dim` is not the rotated part of a head.
    """
    follows("head_dim", fields["head_dim"], latent.rotated)
    return {
        "vocab": fields["vocab_size"],
        "width": fields["hidden_size"],
        "heads": fields["num_attention_heads"],
        "kv_heads": 1,
        "head_size": latent.row,
        "latent": latent,
        "mlp_width": fields["intermediate_size"],
        "norm": "rms",
        "norm_eps": fields["rms_norm_eps"],
        "placement": "pre",
        "activation": activation(fields, "hidden_act"),
        "gated": True,
        "attention_scale": _scale(latent, rope),
        "trained_positions": fields["max_position_embeddings"],
        "ropes": (rope,),
        "tied": fields["tie_word_embeddings"],
        "biases": frozenset(("q_low", "kv", "o") if fields["attention_bias"] else ()),
    }


def _scale(latent: Latent, rope: Rope) -> float:
    """YaRN with `mscale_all_dim`: scores have the square of its factor, not the rotation."""
    given, scale = dict(rope.parameters), float(latent.query**-0.5)
    weight = given.get("mscale_all_dim")
    if not weight or given["factor"] <= 1:
        return scale
    factor = float(0.1 * weight * math.log(given["factor"]) + 1.0)
    return scale * factor * factor


def latent_layers(count: int, dense: int) -> tuple[LayerConfig, ...]:
    """Return `count` layers, the first `dense` of them without experts."""
    return tuple(LayerConfig(dense=index < dense) for index in range(count))


def grouped(fields: Mapping[str, Any], limit: str) -> dict[str, Any]:
    """Return the steps of a choice within groups of experts, and their numbers; see `Experts`.

    `limit` is the step that leaves some of the groups; without groups there is none.
    """
    groups, kept = fields["n_group"] or 1, fields["topk_group"] or 1
    if groups == kept:
        return {"limit": ()}
    return {"limit": (limit,), "groups": groups, "kept_groups": kept}


def _read_v2(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "n_routed_experts", "num_experts")
    fields = read_fields(raw, V2_DEFAULTS, ("q_lora_rank",), V2_ONLY, SILENT)
    check_size("num_experts_per_tok", fields["num_experts_per_tok"])
    limited = fields["topk_method"] == "group_limited_greedy"
    choice = grouped(fields, "best_groups") if limited else {"limit": ()}
    inner = fields["moe_intermediate_size"]
    latent, rope = read_latent(fields, adjacent=True), read_rope(fields)
    return DecoderConfig(
        **latent_sizes(fields, latent, rope),
        layers=latent_layers(fields["num_hidden_layers"], fields["first_k_dense_replace"]),
        experts=Experts(
            fields["n_routed_experts"],
            fields["num_experts_per_tok"],
            inner,
            ("softmax", *choice.pop("limit"), "top"),
            scale=fields["routed_scaling_factor"],
            shared=inner * fields["n_shared_experts"],
            **choice,
        ),
    )


def sigmoid_experts(fields: Mapping[str, Any]) -> Experts:
    """Return experts by the sigmoid of their scores, with a bias of the choice, within groups."""
    choice = grouped(fields, "best_pairs")
    normalize = ("normalize",) if fields["norm_topk_prob"] else ()
    inner = fields["moe_intermediate_size"]
    return Experts(
        fields["n_routed_experts"],
        fields["num_experts_per_tok"],
        inner,
        ("sigmoid", *choice.pop("limit"), "top", *normalize),
        scale=fields["routed_scaling_factor"],
        shared=inner * fields["n_shared_experts"],
        biased=True,
        **choice,
    )


def _read_v3(raw: dict[str, Any]) -> DecoderConfig:
    raw = under_own_name(raw, "n_routed_experts", "num_local_experts")
    fields = read_fields(raw, V3_DEFAULTS, NULLABLE, V3_ONLY, SILENT)
    latent = read_latent(fields, adjacent=fields["rope_interleave"])
    rope = read_rope(fields)
    return DecoderConfig(
        **latent_sizes(fields, latent, rope),
        layers=latent_layers(fields["num_hidden_layers"], fields["first_k_dense_replace"]),
        experts=sigmoid_experts(fields),
    )


MOE_CALLED = LATENT_CALLED + CALLED_OF_EXPERTS
DEEPSEEK_V2 = Family("deepseek_v2", _read_v2, LATENT_WEIGHTS, surplus=SURPLUS, called=LATENT_CALLED)
DEEPSEEK_V3 = Family(
    "deepseek_v3", _read_v3, LATENT_WEIGHTS, surplus=SURPLUS, called=MOE_CALLED, predicts=True
)
