"""How GGUF files name what Hugging Face's files name: keys of metadata, and weights.

An architecture of llama.cpp is a class of Hugging Face with keys and names of weights of its own.
Where its files leave out a field of the configuration, llama.cpp has a fixed value for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.checkpoints.formats.gguf_architecture import (
    GRANITE,
    INNER,
    LAYER,
    NORM,
    OF_IMAGES,
    RMS,
    SHARED,
    WEIGHTS,
    Architecture,
    Fields,
    experts,
)
from suffice.checkpoints.formats.gguf_gemma4 import GEMMA4
from suffice.checkpoints.formats.gguf_states import BAMBA, STATEFUL
from suffice.decoder.name_maps import Filled, stored_together

_QKV = stored_together(LAYER + "attn_qkv", "q", "k", "v")
_GEMMA2: Fields = {
    **RMS,
    "attention.sliding_window": ("sliding_window", int),
    "attn_logit_softcapping": ("attn_logit_softcapping", float),
    "final_logit_softcapping": ("final_logit_softcapping", float),
}
_GEMMA3: Fields = {
    **RMS,
    "attention.sliding_window": ("sliding_window", int),
    "attention.sliding_window_pattern": ("sliding_window_pattern", int),
    "rope.freq_base_swa": ("rope_local_base_freq", float),
}
_WINDOWS: Fields = {
    "attention.sliding_window": ("sliding_window", int),
    "attention.sliding_window_pattern": ("layer_types", list),
}
CURVE = {  # of an activation: keys that have a number for each layer
    "layers.curve_positive": "xielu.alpha_p",
    "layers.curve_negative": "xielu.alpha_n",
    "layers.curve_beta": "xielu.beta",
    "layers.curve_eps": "xielu.eps",
}
_PARALLEL: Fields = {**NORM, "use_parallel_residual": ("use_parallel_residual", bool)}


def _with_norms(fields: dict[str, Any]) -> dict[str, Any]:
    """Return Llama 4's fields with norms of keys, but for 128 experts, as llama.cpp has it."""
    return {**fields, "use_qk_norm": fields.get("num_local_experts") != 128}


ARCHITECTURES: Mapping[str, Architecture] = {
    **STATEFUL,
    "apertus": Architecture(
        "ApertusForCausalLM",
        weights={**WEIGHTS, **{part: f"{LAYER}{key}" for part, key in CURVE.items()}},
        renamed={"head_dim": None},
        fixed={"rope_parameters": {"rope_type": "default"}},  # divisors are a tensor
    ),
    "arcee": Architecture("ArceeForCausalLM", paired=True),
    "chatglm": Architecture(
        "GlmForCausalLM",
        weights={**WEIGHTS, **stored_together(LAYER + "ffn_up", "gate", "up")},
        paired=True,
        partial="partial_rotary_factor",
    ),
    "cohere2": Architecture(
        "Cohere2ForCausalLM",
        {
            **NORM,
            "logit_scale": ("logit_scale", float),
            "attention.sliding_window": ("sliding_window", int),
        },
        paired=True,
    ),
    "command-r": Architecture(
        "CohereForCausalLM",
        {**NORM, "logit_scale": ("logit_scale", float)},
        renamed={"head_dim": None},
        paired=True,
    ),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", paired=True, bias="use_bias"),
    "ernie4_5-moe": Architecture(
        "Ernie4_5_MoeForCausalLM",
        {
            **RMS,
            **INNER,
            **SHARED,
            "expert_count": ("moe_num_experts", int),
            "expert_used_count": ("moe_k", int),
            "expert_shared_count": ("moe_num_shared_experts", int),
            "interleave_moe_layer_step": ("moe_layer_interval", int),
            "leading_dense_block_count": ("moe_layer_start_index", int),
        },
        renamed={"shared_expert_intermediate_size": None},  # not what the tensors have
        paired=True,
        bias="use_bias",
    ),
    "exaone4": Architecture(
        "Exaone4ForCausalLM", {**RMS, **_WINDOWS}, lacking={"sliding_window": None}, bias=""
    ),
    "falcon": Architecture(
        "FalconForCausalLM",
        {**NORM, "tensor_data_layout": ("tensor_data_layout", str)},
        {**WEIGHTS, **_QKV},
        {
            "num_key_value_heads": "num_kv_heads",
            "head_dim": None,
            "intermediate_size": "ffn_hidden_size",
            "layer_norm_eps": "layer_norm_epsilon",
            "tensor_data_layout": None,
        },
        bias="",
    ),
    "gemma": Architecture("GemmaForCausalLM"),
    "gemma2": Architecture("Gemma2ForCausalLM", _GEMMA2, bias=""),
    "gemma3": Architecture("Gemma3ForCausalLM", _GEMMA3, bias=""),
    "gemma4": GEMMA4,
    "glm4": Architecture(
        "Glm4ForCausalLM",
        weights={**WEIGHTS, **stored_together(LAYER + "ffn_up", "gate", "up")},
        paired=True,
        partial="partial_rotary_factor",
    ),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        {
            **RMS,
            **INNER,
            **experts("n_routed_experts"),
            "expert_shared_count": ("n_shared_experts", int),
            "expert_weights_norm": ("norm_topk_prob", bool),
            "expert_weights_scale": ("routed_scaling_factor", float),
            "leading_dense_block_count": ("first_k_dense_replace", int),
            "nextn_predict_layers": ("num_nextn_predict_layers", int),
        },
        weights={**WEIGHTS, "layers.mlp_norm": LAYER + "post_attention_norm"},
        absent={"expert_gating_func": 2, "nextn_predict_layers": 0},  # 2: the sigmoid
        partial="partial_rotary_factor",
        stored={"use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        NORM,
        {**WEIGHTS, **_QKV, "positions": "position_embd"},
        {
            "max_position_embeddings": "n_positions",
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "num_key_value_heads": None,
            "head_dim": None,
            "intermediate_size": "n_inner",
            "layer_norm_eps": "layer_norm_epsilon",
        },
        bias="",
    ),
    "gptneox": Architecture(
        "GPTNeoXForCausalLM",
        _PARALLEL,
        {**WEIGHTS, **_QKV},
        {"num_key_value_heads": None, "head_dim": None, "rope_theta": "rotary_emb_base"},
        partial="rotary_pct",
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        {
            **RMS,
            **experts("num_local_experts"),
            "attention.sliding_window": ("sliding_window", int),
            "expert_feed_forward_length": ("intermediate_size", int),
        },
        {
            **WEIGHTS,
            "layers.mlp_norm": LAYER + "post_attention_norm",
            "layers.spare": LAYER + "attn_sinks",
        },
        fixed={"rope_parameters": {"rope_type": "default"}},  # without rope.scaling keys
        scaled={"truncate": False},
    ),
    "granite": Architecture(
        "GraniteForCausalLM",
        {**GRANITE, **SHARED},
        renamed={"shared_expert_intermediate_size": None},  # of Granite 4, that of the MLP
        absent={"expert_used_count": 0},
        paired=True,
        unread=("ssm.",),  # of layers with states
    ),
    "granitemoe": Architecture(
        "GraniteMoeForCausalLM", {**GRANITE, **experts("num_local_experts")}, paired=True
    ),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM"),
    "hunyuan-moe": Architecture(
        "HunYuanMoEV1ForCausalLM",
        {
            **RMS,
            "expert_count": ("num_experts", int),
            "expert_used_count": ("moe_topk", int),
            "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", int),
        },
        renamed={"shared_expert_intermediate_size": None},  # that of the experts
    ),
    "llama": Architecture("LlamaForCausalLM", paired=True),
    "llama4": Architecture(
        "Llama4ForCausalLM",
        {
            **RMS,
            **INNER,
            **experts("num_local_experts"),
            "interleave_moe_layer_step": ("interleave_moe_layer_step", int),
        },
        weights={**WEIGHTS, **dict.fromkeys(("layers.q_norm", "layers.k_norm"), Filled(1.0))},
        renamed={
            "intermediate_size": "intermediate_size_mlp",
            "moe_intermediate_size": "intermediate_size",
        },
        paired=True,
        finished=_with_norms,
    ),
    "mistral3": Architecture(
        "Ministral3ForCausalLM",
        {**RMS, "attention.temperature_scale": ("rope_parameters.llama_4_scaling_beta", float)},
        lacking={"rope_parameters.rope_type": "default"},
        paired=True,
        bias="",
    ),
    "nemotron": Architecture(
        "NemotronForCausalLM",
        NORM,
        renamed={"layer_norm_eps": "norm_eps"},
        partial="partial_rotary_factor",
    ),
    "olmo2": Architecture("Olmo2ForCausalLM"),
    "olmoe": Architecture(
        "OlmoeForCausalLM", {**RMS, **experts("num_experts")}, renamed={"head_dim": None}
    ),
    "phi2": Architecture(
        "PhiForCausalLM",
        NORM,
        renamed={"head_dim": None},
        partial="partial_rotary_factor",
        bias="",
    ),
    "phimoe": Architecture(
        "PhimoeForCausalLM",
        {
            **RMS,
            **experts("num_local_experts"),
            "attention.sliding_window": ("sliding_window", int),
        },
        absent={"attention.sliding_window": 0},
        stored={"lm_head_bias": "output.bias"},
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        {**RMS, "attention.sliding_window": ("sliding_window", int)},
        {**WEIGHTS, **_QKV, **stored_together(LAYER + "ffn_up", "gate", "up")},
        absent={"attention.sliding_window": 0},
        partial="partial_rotary_factor",
        bias="",
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", bias=""),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        {**RMS, **experts("num_experts"), **INNER, **SHARED},
        fixed={"norm_topk_prob": False},
        bias="qkv_bias",
    ),
    "qwen2vl": Architecture("Qwen2ForCausalLM", bias="", unread=OF_IMAGES),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        {**RMS, **experts("num_experts"), **INNER},
        fixed={"norm_topk_prob": True},
    ),
    "qwen3vl": Architecture("Qwen3ForCausalLM", unread=OF_IMAGES),
    "qwen3vlmoe": Architecture(
        "Qwen3MoeForCausalLM",
        {**RMS, **experts("num_experts"), **INNER},
        fixed={"norm_topk_prob": True},
        unread=OF_IMAGES,
    ),
    "seed_oss": Architecture(
        "SeedOssForCausalLM",
        weights={**WEIGHTS, "layers.mlp_norm": LAYER + "post_attention_norm"},
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", paired=True),
    "stablelm": Architecture(
        "StableLmForCausalLM",
        _PARALLEL,
        renamed={"head_dim": None},
        partial="partial_rotary_factor",
        bias="use_qkv_bias",
    ),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        NORM,
        renamed={"layer_norm_eps": "norm_epsilon"},
        bias="use_bias",
    ),
}
# architectures that other classes of Hugging Face have if a file has a certain key, not 0 or false
WITH_KEY: Mapping[tuple[str, str], Architecture] = {
    ("granitemoe", "expert_shared_feed_forward_length"): Architecture(
        "GraniteMoeSharedForCausalLM",
        {
            **GRANITE,
            **experts("num_local_experts"),
            "expert_shared_feed_forward_length": ("shared_intermediate_size", int),
        },
        paired=True,
        unread=("ssm.",),
    ),
    ("granitehybrid", "rope.scaling.finetuned"): BAMBA,
    ("llama", "expert_count"): Architecture(
        "MixtralForCausalLM", {**RMS, **experts("num_local_experts")}, paired=True, bias=""
    ),
    ("olmo2", "attention.sliding_window"): Architecture(
        "Olmo3ForCausalLM", {**RMS, **_WINDOWS}, renamed={"head_dim": None}
    ),
}
