"""The configurations of tiny checkpoints of mixtures of experts."""

from __future__ import annotations

from typing import Any

from tiny_variants import _FULL, _GEMMA4, _GRANITE, _MAMBA, _NO_HEAD_DIM, _SIZES

_EXPERTS: dict[str, Any] = {
    **_NO_HEAD_DIM,
    "intermediate_size": 48,
    "num_experts_per_tok": 2,
}
_GRANITE4: dict[str, Any] = {
    **_EXPERTS,
    **_GRANITE,
    "shared_intermediate_size": 80,
    "layer_types": _FULL,
    "position_embedding_type": "rope",
    "mamba_n_heads": 4,
}
_NEMOTRON: dict[str, Any] = {
    **_SIZES,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 32,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
}
_LLAMA4: dict[str, Any] = {
    **_SIZES,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
}

# variant: (transformers' family, its configuration)
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "hunyuan-moe": (
        "HunYuanMoEV1",
        {
            **_EXPERTS,
            "head_dim": 16,
            "num_experts": 6,
            "moe_topk": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
    ),
    "gemma4-moe": (
        "Gemma4Text",
        {
            **_GEMMA4,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "ernie-moe": (
        "Ernie4_5_Moe",
        {
            **_EXPERTS,
            "num_hidden_layers": 5,
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_layer_interval": 2,
            "moe_layer_end_index": 3,
        },
    ),
    "glm4-moe": (
        "Glm4Moe",
        {
            **_EXPERTS,
            "head_dim": 16,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_routed_experts": 6,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
        },
    ),
    "granite4-states": (
        "GraniteMoeHybrid",
        {
            **_GRANITE4,
            **_MAMBA,
            "num_local_experts": 5,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "kimi": (
        "KimiLinear",
        {
            **_EXPERTS,
            "num_key_value_heads": 4,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "num_local_experts": 6,
            "moe_intermediate_size": 32,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_head_dim": 16,
            "linear_num_heads": 4,
        },
    ),
    "nemotron-h-moe": (
        "NemotronH",
        {
            **_NEMOTRON,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 1.5,
        },
    ),
    "nemotron-h-latent": (
        "NemotronH",
        {
            **_NEMOTRON,
            "layers_block_type": ["moe", "full_attention", "linear_attention", "moe"],
            "moe_intermediate_size": 48,
            "moe_latent_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "mlp_bias": True,
        },
    ),
    "lfm2-moe": (
        "Lfm2Moe",
        {
            **_EXPERTS,
            "num_experts": 6,
            "num_dense_layers": 1,
            "moe_intermediate_size": 32,
            "layer_types": ["conv", "full_attention", "conv"],
        },
    ),
    "granite-moe": ("GraniteMoe", {**_EXPERTS, **_GRANITE, "num_local_experts": 5}),
    "granite4": ("GraniteMoeHybrid", {**_GRANITE4, "num_local_experts": 0}),
    "granite4-moe": (
        "GraniteMoeHybrid",
        {**_GRANITE4, "num_local_experts": 5, "position_embedding_type": None},
    ),
    "granite-moe-shared": (
        "GraniteMoeShared",
        {**_EXPERTS, **_GRANITE, "num_local_experts": 5, "shared_intermediate_size": 32},
    ),
    "llama4": (
        "Llama4Text",
        {
            **_LLAMA4,
            "no_rope_layer_interval": 2,
            "floor_scale": 16,
            "attn_scale": 0.7,
            "attention_bias": True,
        },
    ),
    "llama4-mixed": (
        "Llama4Text",
        {
            **_LLAMA4,
            "interleave_moe_layer_step": 2,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_chunk_size": 96,
            "num_experts_per_tok": 2,
        },
    ),
    "mixtral": ("Mixtral", {**_EXPERTS, "num_local_experts": 6, "sliding_window": 8}),
    "olmoe": ("Olmoe", {**_EXPERTS, "num_experts": 6}),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            **_EXPERTS,
            "num_experts": 6,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
        },
    ),
    "qwen2-moe-mixed": (
        "Qwen2Moe",
        {
            **_EXPERTS,
            "num_experts": 4,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 32,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 8,
            "qkv_bias": False,
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            **_EXPERTS,
            "head_dim": 32,
            "num_experts": 8,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "phi-moe": (
        "Phimoe",
        {
            **_EXPERTS,
            "num_local_experts": 8,
            "attention_bias": True,
            "lm_head_bias": True,
            "router_jitter_noise": 0.3,
        },
    ),
    "phi-moe-longrope": (
        "Phimoe",
        {
            **_EXPERTS,
            "num_local_experts": 4,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1000.0,
                "original_max_position_embeddings": 128,
                "short_mscale": 1.25,
                "long_mscale": 1.25,
                "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 3.5],
                "long_factor": [1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 15.0, 17.0],
            },
        },
    ),
}
