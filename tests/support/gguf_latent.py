"""What GGUF files of models with latent attention have of their own.

Newer ones store the two halves of `kv_b_proj` apart, and the sizes of rows; older ones the whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_SIGMOIDS = ("deepseek_v3", "glm4_moe_lite")


def is_latent(raw: dict[str, Any]) -> bool:
    """Return whether a configuration is of such a model."""
    return "kv_lora_rank" in raw


def keys(raw: dict[str, Any], found: dict[str, Any], *, together: bool) -> dict[str, Any]:
    """Return the keys that `found` lacks; `together`: as older files have them."""
    rank, rotated = raw["kv_lora_rank"], raw["qk_rope_head_dim"]
    heads = {"key_length": raw["qk_nope_head_dim"] + rotated, "value_length": raw["v_head_dim"]}
    if not together:
        heads = {f"{name}_mla": size for name, size in heads.items()}
        heads |= {"key_length": rank + rotated, "value_length": rank}
        found = found | {"attention.head_count_kv": 1}
    heads["kv_lora_rank"] = rank
    if raw["q_lora_rank"] is not None:
        heads["q_lora_rank"] = raw["q_lora_rank"]
    found |= {f"attention.{name}": size for name, size in heads.items()}
    found |= {"rope.dimension_count": rotated, "vocab_size": raw["vocab_size"]}
    if "n_routed_experts" in raw:
        found |= _experts(raw, together=together)
    elif raw["model_type"] == "youtu":
        found |= {
            "leading_dense_block_count": raw["num_hidden_layers"],
            "expert_feed_forward_length": raw["intermediate_size"],
            "expert_shared_count": 0,
        }
    rope = raw["rope_parameters"]
    if rope["rope_type"] == "yarn":
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return found


def _experts(raw: dict[str, Any], *, together: bool) -> dict[str, Any]:
    sigmoids = raw["model_type"] in _SIGMOIDS
    kinds = raw.get("mlp_layer_types") or ["dense"] * raw["first_k_dense_replace"]
    found = {
        "expert_count": raw["n_routed_experts"],
        "expert_shared_count": raw["n_shared_experts"],
        "expert_weights_scale": float(raw["routed_scaling_factor"]),
        "leading_dense_block_count": kinds.count("dense"),
        "expert_group_count": raw["n_group"],
        "expert_group_used_count": raw["topk_group"],
    }
    if sigmoids:
        found["expert_weights_norm"] = raw["norm_topk_prob"]
    if not together:
        found["expert_gating_func"] = 2 if sigmoids else 1
    return found


def tensors(raw: dict[str, Any], stored: dict[str, Any], *, together: bool) -> dict[str, Any]:
    """Return the weights under Hugging Face's names, or llama.cpp's where one becomes two."""
    found = {}
    heads, plain = raw["num_attention_heads"], raw["qk_nope_head_dim"]
    for name, values in stored.items():
        if name.endswith("kv_b_proj.weight") and not together:
            layer = name.split(".")[2]
            parts = values.reshape(heads, -1, raw["kv_lora_rank"])
            found[f"blk.{layer}.attn_k_b.weight"] = parts[:, :plain].swapaxes(1, 2)
            found[f"blk.{layer}.attn_v_b.weight"] = parts[:, plain:]
        elif name.endswith("e_score_correction_bias"):
            found[f"blk.{name.split('.')[2]}.exp_probs_b.bias"] = values
        else:
            found[name] = np.asarray(values)
    return found
