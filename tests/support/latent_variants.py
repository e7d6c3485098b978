"""The configurations of tiny checkpoints with latent attention."""

from __future__ import annotations

from typing import Any

_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 48,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
_GROUPED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
}
_MANY_HEADS = {  # more than a vector's lanes
    "hidden_size": 80,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
}


def latent_variants(sizes: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the variants by name, with the sizes of all others."""
    latent = {**sizes, **_LATENT}
    grouped = {**latent, **_GROUPED}
    return {
        "deepseek-v2": (
            "DeepseekV2",
            {
                **grouped,
                "n_shared_experts": 2,
                "topk_method": "group_limited_greedy",
                "rope_parameters": _YARN,
            },
        ),
        "deepseek-v2-lite": (
            "DeepseekV2",
            {**grouped, **_MANY_HEADS, "q_lora_rank": None, "n_group": 1, "topk_group": 1},
        ),
        "deepseek-v3": ("DeepseekV3", {**grouped, "rope_parameters": _YARN}),
        "deepseek-v3-bias": (
            "DeepseekV3",
            {
                **grouped,
                "attention_bias": True,
                "rope_interleave": False,
                "norm_topk_prob": False,
            },
        ),
        "glm4-moe-lite": (
            "Glm4MoeLite",
            {
                **latent,
                "n_routed_experts": 6,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "mlp_layer_types": ["dense", "sparse", "dense"],
            },
        ),
        "minicpm3": (
            "MiniCPM3",
            {**latent, "scale_emb": 3.0, "scale_depth": 1.2, "dim_model_base": 32},
        ),
        "mistral4": (
            "Mistral4",
            {**grouped, "rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.5}},
        ),
        # transformers clears the row of padding when it loads the file
        "youtu": ("Youtu", {**latent, "q_lora_rank": None, "pad_token_id": None}),
    }
