"""GGUF files of models with latent attention: llama.cpp's architectures deepseek2 and minicpm3.

Newer files store the two matrices that make keys and values of a joint row apart, as they are
multiplied with queries and outputs; their sizes of heads are those of joint rows, and those of the
heads themselves have keys of their own. Older files have one matrix and the heads' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.checkpoints.formats.gguf_architecture import LAYER, RMS, WEIGHTS, Architecture, Fields
from suffice.checkpoints.formats.gguf_file import TensorInfo
from suffice.decoder.name_maps import Templates, stored_by_head
from suffice.errors import InputError

_APART = ("layers.k", "layers.v", "layers.k_norm")  # of keys and values that are apart
_LATENT: Templates = {
    **{name: stored for name, stored in WEIGHTS.items() if name not in _APART},
    "layers.q_low": LAYER + "attn_q_a",
    "layers.q_norm": LAYER + "attn_q_a_norm",
    "layers.q": LAYER + "attn_q_b",
    "layers.kv": LAYER + "attn_kv_a_mqa",
    "layers.kv_norm": LAYER + "attn_kv_a_norm",
    "layers.key_up": LAYER + "attn_k_b",
    "layers.value_up": LAYER + "attn_v_b",
    "layers.choice": LAYER + "exp_probs_b",
}
_TOGETHER = stored_by_head(LAYER + "attn_kv_b", "key_up", "value_up")
_FIELDS: Fields = {
    **RMS,
    "attention.key_length": ("key_length", int),
    "attention.key_length_mla": ("key_length_mla", int),
    "attention.value_length": ("value_length", int),
    "attention.value_length_mla": ("value_length_mla", int),
    "attention.kv_lora_rank": ("kv_lora_rank", int),
    "attention.q_lora_rank": ("q_lora_rank", int),
    "rope.dimension_count": ("qk_rope_head_dim", int),
}
_NEEDED = (
    "attention.key_length",
    "attention.value_length",
    "attention.kv_lora_rank",
    "rope.dimension_count",
)
_EXPERTS: Fields = {
    **_FIELDS,
    "expert_count": ("n_routed_experts", int),
    "expert_used_count": ("num_experts_per_tok", int),
    "expert_feed_forward_length": ("moe_intermediate_size", int),
    "expert_shared_count": ("n_shared_experts", int),
    "expert_weights_scale": ("routed_scaling_factor", float),
    "expert_weights_norm": ("norm_topk_prob", bool),
    "expert_gating_func": ("scoring_func", int),
    "expert_group_count": ("n_group", int),
    "expert_group_used_count": ("topk_group", int),
    "leading_dense_block_count": ("first_k_dense_replace", int),
    "nextn_predict_layers": ("num_nextn_predict_layers", int),
}
_SCORES = {1: "softmax", 2: "sigmoid"}  # as llama.cpp numbers them


def _heads(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the sizes of heads, as Hugging Face names them.

    Raises:
        InputError: The sizes of rows and of their values contradict the rank.
    """
    fields = dict(raw)
    del fields["head_dim"]
    fields["num_key_value_heads"] = fields["num_attention_heads"]  # not those of joint rows
    key, value = fields.pop("key_length"), fields.pop("value_length")
    rank, rotated = fields["kv_lora_rank"], fields["qk_rope_head_dim"]
    if "key_length_mla" in fields and (key, value) != (rank + rotated, rank):
        raise InputError(
            f"GGUF keys 'attention.key_length' = {key} and 'attention.value_length' = {value} are "
            f"not those of rows: {rank + rotated} and {rank}"
        )
    fields["qk_nope_head_dim"] = fields.pop("key_length_mla", key) - rotated
    fields["v_head_dim"] = fields.pop("value_length_mla", value)
    scaling = fields.get("rope_scaling") or {}
    if "mscale" in scaling:  # a tenth of the factor of scores; the rotation itself has none
        factor = float(f"{10 * scaling['mscale']:.6g}")  # it is stored in float32
        fields["rope_scaling"] = {**scaling, "mscale": factor, "mscale_all_dim": factor}
    return fields


def _with_experts(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the choice of experts, as Hugging Face names its parts.

    Raises:
        InputError: An unknown kind of scores.
    """
    fields = _heads(raw)
    kind = fields["scoring_func"]
    if kind not in _SCORES:
        raise InputError(
            f"GGUF key 'deepseek2.expert_gating_func' = {kind} is not supported; supported: "
            f"{', '.join(map(str, _SCORES))}"
        )
    fields["scoring_func"] = _SCORES[kind]
    if kind == 1 and fields["n_group"] > 1:
        fields["topk_method"] = "group_limited_greedy"
    return fields


_V2 = Architecture(
    "DeepseekV2ForCausalLM",
    _EXPERTS,
    _LATENT,
    lacking={
        "q_lora_rank": None,
        "scoring_func": 1,
        "norm_topk_prob": False,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
    },
    absent={"leading_dense_block_count": 0, "nextn_predict_layers": 0},
    bias="",
    needed=_NEEDED,
    finished=_with_experts,
)
_V3 = replace(_V2, name="DeepseekV3ForCausalLM", lacking={**_V2.lacking, "scoring_func": 2})
_DENSE = Architecture(
    "YoutuForCausalLM",
    _EXPERTS,
    _LATENT,
    renamed=dict.fromkeys(
        ("moe_intermediate_size", "first_k_dense_replace", "num_experts_per_tok", "norm_topk_prob")
    ),
    lacking={"q_lora_rank": None},
    absent={"expert_shared_count": 0, "expert_used_count": 0, "expert_gating_func": 0},
    bias="",
    needed=_NEEDED,
    finished=_heads,
)
_MINICPM3 = Architecture(
    "MiniCPM3ForCausalLM",
    _FIELDS,
    _LATENT,
    fixed={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    bias="",
    needed=_NEEDED,
    finished=_heads,
)
LATENT: Mapping[str, Architecture] = {"deepseek2": _V2, "minicpm3": _MINICPM3}


def renamed(tensors: Mapping[str, TensorInfo]) -> Mapping[str, TensorInfo]:
    """Return tensors by name, the bias of a choice under that of a weight, as others have it.

    Stacks of a matrix for each head are one matrix.
    """
    found = {}
    for name, info in tensors.items():
        own = name.removesuffix("exp_probs_b.bias")
        if len(info.shape) == 3 and name.endswith(("attn_k_b.weight", "attn_v_b.weight")):
            info = info._replace(shape=(info.rows, info.columns))
        found[name if own == name else own + "exp_probs_b.weight"] = info
    return found


def variant(
    name: str, own: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> Architecture:
    """Return which of an architecture's classes a file has, and how it stores the matrices.

    A file without the kind of its experts' scores has sigmoids if its choice has a bias, in the
    first layer with experts.
    """
    if name == "deepseek2":
        first = metadata.get("deepseek2.leading_dense_block_count", 0)
        biased = f"blk.{first}.exp_probs_b.weight" in tensors
        kind = metadata.get("deepseek2.expert_gating_func", 2 if biased else 1)
        own = _V3 if kind == 2 else _V2
        if not metadata.get("deepseek2.expert_count"):
            own = _DENSE
    if "blk.0.attn_kv_b.weight" in tensors:
        own = replace(own, weights={**own.weights, **_TOGETHER})
    if "blk.0.attn_q.weight" in tensors:  # queries that are made in one step
        own = replace(own, weights={**own.weights, "layers.q": LAYER + "attn_q"})
    return own
