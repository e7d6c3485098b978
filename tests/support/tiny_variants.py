"""The configurations of tiny checkpoints: of every family, and of what its fields choose."""

from __future__ import annotations

from typing import Any

from latent_variants import latent_variants

VOCABULARY = 200

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_NO_HEAD_DIM = {key: value for key, value in _SIZES.items() if key != "head_dim"}
_OPT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_inner": 96,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_NEOX: dict[str, Any] = {
    key: value for key, value in _NO_HEAD_DIM.items() if key != "num_key_value_heads"
}
_FALCON: dict[str, Any] = {key: value for key, value in _NEOX.items() if key != "intermediate_size"}
_PHI: dict[str, Any] = {**_NO_HEAD_DIM, "intermediate_size": 112}
_GEMMA3: dict[str, Any] = {
    **_SIZES,
    "hidden_size": 48,
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
}

_GEMMA4: dict[str, Any] = {
    **_SIZES,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 4.0,
    "tie_word_embeddings": False,  # else the last token comes again and again
}
_GEMMA2: dict[str, Any] = {
    **_SIZES,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 3.0,  # well below the scores
    "final_logit_softcapping": 5.0,
}
_GPT_OSS: dict[str, Any] = {
    **_SIZES,
    "intermediate_size": 32,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "truncate": False,
    },
}


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **parameters}}


_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LINEAR_GEMMA = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
}
_YARN_OLMO = {
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    }
}
_FULL = ["full_attention"] * 3
_LISTS = {
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.5, 2.0, 3.0, 5.0, 8.0, 13.0],
}
_GRANITE = {
    "embedding_multiplier": 6.3,
    "logits_scaling": 0.7,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.11,
}
_DELTA = {  # layers with states by the delta rule
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_NEXT_EXPERTS = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
}

# variant: (transformers' family, its configuration)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _SIZES),
    "llama-bias": (
        "Llama",
        {
            **_SIZES,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "llama-linear": ("Llama", {**_SIZES, **_rope("linear", factor=4.0)}),
    "llama-dynamic": (
        "Llama",
        {**_SIZES, "max_position_embeddings": 16, **_rope("dynamic", factor=2.0)},
    ),
    "llama-llama3": ("Llama", {**_SIZES, **_rope("llama3", **_LLAMA3)}),
    "llama-yarn": (
        "Llama",
        {**_SIZES, **_rope("yarn", factor=4.0, original_max_position_embeddings=32)},
    ),
    "hunyuan": ("HunYuanDenseV1", {**_SIZES, **_rope("dynamic", alpha=100.0, factor=1.0)}),
    "ministral": (
        "Ministral",
        {
            **_SIZES,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "ministral3": (
        "Ministral3",
        {
            **_SIZES,
            **_rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=16,
                llama_4_scaling_beta=0.5,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "bamba": ("Bamba", {**_NO_HEAD_DIM, **_MAMBA, "attn_layer_indices": [1]}),
    "falcon-h1": (
        "FalconH1",
        {
            **_SIZES,
            **_MAMBA,
            "mamba_d_ssm": 128,
            "lm_head_multiplier": 0.7,
            "embedding_multiplier": 5.656854249492381,
            "key_multiplier": 0.6,
            "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.9375,
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.4,
            "ssm_multipliers": [0.3, 0.9, 1.3, 0.5, 0.4],
            "mlp_multipliers": [0.8838834764831844, 0.5859375],
        },
    ),
    "falcon-h1-norm": (
        "FalconH1",
        {
            **_SIZES,
            **_MAMBA,
            "mamba_d_ssm": 128,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "projectors_bias": True,
            "mlp_bias": True,
            "mlp_multipliers": [0.7, 0.5],
            "ssm_out_multiplier": 0.4,
        },
    ),
    "nemotron-h": (
        "NemotronH",
        {
            **_SIZES,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 32,
            "time_step_min": 0.3,
        },
    ),
    "olmo-hybrid": (
        "OlmoHybrid",
        {
            **_NO_HEAD_DIM,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    "lfm2": ("Lfm2", {**_NO_HEAD_DIM, "full_attn_idxs": [1], "block_multiple_of": 32}),
    "qwen3-next": ("Qwen3Next", {**_SIZES, **_DELTA, **_NEXT_EXPERTS, "mlp_only_layers": [1]}),
    "qwen3.5": ("Qwen3_5Text", {**_SIZES, **_DELTA, "head_dim": 32}),
    "qwen3.5-moe": (
        "Qwen3_5MoeText",
        {**_SIZES, **_DELTA, **_NEXT_EXPERTS, "intermediate_size": None},
    ),
    "mistral": ("Mistral", {**_SIZES, "sliding_window": 8}),
    "mistral-full": ("Mistral", {**_SIZES, "sliding_window": None}),
    "qwen2": ("Qwen2", _NO_HEAD_DIM),
    "qwen2-window": (
        "Qwen2",
        {**_NO_HEAD_DIM, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**_SIZES, "head_dim": 32}),
    "qwen3-window": (
        "Qwen3",
        {
            **_SIZES,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": ("Gemma3Text", _GEMMA3),
    "gemma4": (
        "Gemma4Text",
        {
            **_GEMMA4,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "hidden_size_per_layer_input": 16,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-keys": (
        "Gemma4Text",
        {**_GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "gemma3-linear": ("Gemma3Text", {**_GEMMA3, **_LINEAR_GEMMA}),
    "apertus": ("Apertus", {**_NO_HEAD_DIM, **_rope("llama3", **_LLAMA3)}),
    "arcee": ("Arcee", {**_SIZES, "attention_bias": True, "mlp_bias": True}),
    "cohere": ("Cohere", {**_NO_HEAD_DIM, "logit_scale": 0.4}),
    "cohere2": (
        "Cohere2",
        {**_NO_HEAD_DIM, "sliding_window": 8, "logit_scale": 0.4, "attention_bias": True},
    ),
    "ernie": ("Ernie4_5", {**_SIZES, "head_dim": 32, "use_bias": True}),
    "exaone4": ("Exaone4", {**_NO_HEAD_DIM, "num_hidden_layers": 5, "sliding_window": 8}),
    "exaone4-full": ("Exaone4", {**_NO_HEAD_DIM, "sliding_window": None, "layer_types": _FULL}),
    "falcon": ("Falcon", {**_FALCON, "ffn_hidden_size": 112}),
    "falcon-bias": ("Falcon", {**_FALCON, "bias": True, "tie_word_embeddings": False}),
    "gemma2": ("Gemma2", _GEMMA2),
    "gemma2-uncapped": (
        "Gemma2",
        {**_GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gpt-oss": ("GptOss", _GPT_OSS),
    "opt": ("OPT", _OPT),
    "opt-post": ("OPT", {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 48}),
    "opt-no-final-norm": ("OPT", {**_OPT, "_remove_final_layer_norm": True}),
    "opt-untied": ("OPT", {**_OPT, "tie_word_embeddings": False, "enable_bias": False}),
    "gemma": ("Gemma", {**_SIZES, "head_dim": 32}),
    "glm": ("Glm", {**_SIZES, "head_dim": 32}),
    "glm4": ("Glm4", {**_SIZES, "head_dim": 32}),
    "gpt2": ("GPT2", _GPT2),
    "gpt2-unscaled": ("GPT2", {**_GPT2, "scale_attn_weights": False, "tie_word_embeddings": False}),
    "gptj": ("GPTJ", {**_GPT2, "rotary_dim": 8}),
    "granite": ("Granite", {**_NO_HEAD_DIM, **_GRANITE}),
    "helium": ("Helium", {**_SIZES, "attention_bias": True, "mlp_bias": True}),
    "nemotron": ("Nemotron", {**_SIZES, "attention_bias": True, "mlp_bias": True}),
    "neox": ("GPTNeoX", _NEOX),
    "neox-serial": (
        "GPTNeoX",
        {
            **_NEOX,
            "use_parallel_residual": False,
            "attention_bias": False,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        },
    ),
    "nanochat": ("NanoChat", {**_NO_HEAD_DIM, "final_logit_softcapping": 2.0}),
    "nanochat-bare": ("NanoChat", {**_NO_HEAD_DIM, "final_logit_softcapping": None}),
    "olmo2": ("Olmo2", _NO_HEAD_DIM),
    "olmo3": (
        "Olmo3",
        {**_NO_HEAD_DIM, "num_hidden_layers": 4, "sliding_window": 8, **_YARN_OLMO},
    ),
    "phi": ("Phi", _PHI),
    "phi3": ("Phi3", {**_NO_HEAD_DIM, "sliding_window": 8}),
    "phi3-longrope": (
        "Phi3",
        {
            **_NO_HEAD_DIM,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.75,
                **_LISTS,
            },
        },
    ),
    "seed-oss": ("SeedOss", {**_SIZES, "head_dim": 32, "attention_out_bias": True}),
    "smollm3": ("SmolLM3", {**_NO_HEAD_DIM, "no_rope_layers": [1, 0, 1]}),
    "smollm3-window": (
        "SmolLM3",
        {
            **_NO_HEAD_DIM,
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 8,
            "attention_bias": True,
        },
    ),
    "stablelm": ("StableLm", {**_NO_HEAD_DIM, "use_qkv_bias": True}),
    "starcoder2": ("Starcoder2", {**_NO_HEAD_DIM, "sliding_window": 8}),
    "stablelm-parallel": ("StableLm", {**_NO_HEAD_DIM, "use_parallel_residual": True}),
    **latent_variants(_NO_HEAD_DIM),
}

# those whose layers keep states, of every kind
STATEFUL = (
    "bamba",
    "falcon-h1",
    "kimi",
    "lfm2",
    "nemotron-h",
    "olmo-hybrid",
    "qwen3-next",
    "qwen3.5",
)
