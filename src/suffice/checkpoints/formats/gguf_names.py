"""How GGUF files name what Hugging Face's files name: keys of metadata, and weights.

An architecture of llama.cpp is a class of Hugging Face with keys and names of weights of its own.
Where its files leave out a field of the configuration, llama.cpp has a fixed value for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from suffice.decoder.name_maps import Filled, Templates, stored_together

# of a metadata key: the configuration field, with a dot if it is in an object, and its type
Fields = Mapping[str, tuple[str, type]]

_LAYER = "blk.{i}."
_WEIGHTS: Templates = {
    "embed": "token_embd",
    "final_norm": "output_norm",
    "head": "output",
    "layers.attn_norm": _LAYER + "attn_norm",
    "layers.q": _LAYER + "attn_q",
    "layers.k": _LAYER + "attn_k",
    "layers.v": _LAYER + "attn_v",
    "layers.o": _LAYER + "attn_output",
    "layers.q_norm": _LAYER + "attn_q_norm",
    "layers.k_norm": _LAYER + "attn_k_norm",
    "layers.post_attn_norm": _LAYER + "post_attention_norm",
    "layers.mlp_norm": _LAYER + "ffn_norm",
    "layers.gate": _LAYER + "ffn_gate",
    "layers.up": _LAYER + "ffn_up",
    "layers.down": _LAYER + "ffn_down",
    "layers.post_mlp_norm": _LAYER + "post_ffw_norm",
    "layers.router": _LAYER + "ffn_gate_inp",
    "layers.choice": _LAYER + "exp_probs_b.bias",
    **stored_together(_LAYER + "ffn_gate_exps", "expert_gate", by_expert=True),
    **stored_together(_LAYER + "ffn_up_exps", "expert_up", by_expert=True),
    **stored_together(_LAYER + "ffn_down_exps", "expert_down", by_expert=True),
    "layers.shared_router": _LAYER + "ffn_gate_inp_shexp",
    "layers.shared_gate": _LAYER + "ffn_gate_shexp",
    "layers.shared_up": _LAYER + "ffn_up_shexp",
    "layers.shared_down": _LAYER + "ffn_down_shexp",
}
_QKV = stored_together(_LAYER + "attn_qkv", "q", "k", "v")

_SIZES: Fields = {
    "context_length": ("max_position_embeddings", int),
    "embedding_length": ("hidden_size", int),
    "block_count": ("num_hidden_layers", int),
    "feed_forward_length": ("intermediate_size", int),
    "attention.head_count": ("num_attention_heads", int),
    "attention.head_count_kv": ("num_key_value_heads", int),
    "attention.key_length": ("head_dim", int),
    "rope.freq_base": ("rope_theta", float),
}
_RMS: Fields = {**_SIZES, "attention.layer_norm_rms_epsilon": ("rms_norm_eps", float)}
_NORM: Fields = {**_SIZES, "attention.layer_norm_epsilon": ("layer_norm_eps", float)}
_GEMMA2: Fields = {
    **_RMS,
    "attention.sliding_window": ("sliding_window", int),
    "attn_logit_softcapping": ("attn_logit_softcapping", float),
    "final_logit_softcapping": ("final_logit_softcapping", float),
}
_GEMMA3: Fields = {
    **_RMS,
    "attention.sliding_window": ("sliding_window", int),
    "attention.sliding_window_pattern": ("sliding_window_pattern", int),
    "rope.freq_base_swa": ("rope_local_base_freq", float),
}
_GRANITE: Fields = {
    **_RMS,
    "attention.scale": ("attention_multiplier", float),
    "embedding_scale": ("embedding_multiplier", float),
    "residual_scale": ("residual_multiplier", float),
    "logit_scale": ("logits_scaling", float),  # divides, as the field does
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
_OF_IMAGES = ("n_deepstack_layers", "rope.dimension_sections")
_PARALLEL: Fields = {**_NORM, "use_parallel_residual": ("use_parallel_residual", bool)}


def _experts(count: str) -> Fields:
    """Return the keys of experts; `count` is the field of their number."""
    return {"expert_count": (count, int), "expert_used_count": ("num_experts_per_tok", int)}


_INNER: Fields = {"expert_feed_forward_length": ("moe_intermediate_size", int)}
_SHARED: Fields = {"expert_shared_feed_forward_length": ("shared_expert_intermediate_size", int)}


@dataclass(frozen=True)
class Architecture:
    """One architecture; `name` is that of Hugging Face's class.

    `renamed` are fields that the class calls otherwise, or does not have (None). `fixed` are its
    values that the file does not have, `lacking` those of fields whose keys it may lack; `absent`
    are values of keys that mean that they are not there. `paired`: rows that a rotation mixes are
    stored next to each other. `partial`: the field of the part of a head that is rotated, if not
    all of it is. `bias`: the field that says whether queries, keys and values have biases, if there
    is one; `stored`: fields that say whether some tensor is there. `scaled`: parameters of a scaled
    rotation that the file does not have. `unread`: keys with such a beginning say nothing of the
    model. `needed`: keys that a file must have. `finished` turns all fields into those of the
    class.
    """

    name: str
    fields: Fields = field(default_factory=lambda: _RMS)
    weights: Templates = field(default_factory=lambda: _WEIGHTS)
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    lacking: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)
    paired: bool = False
    partial: str = ""
    bias: str = "attention_bias"
    stored: Mapping[str, str] = field(default_factory=dict)
    scaled: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    finished: Callable[[dict[str, Any]], dict[str, Any]] = dict


ARCHITECTURES: Mapping[str, Architecture] = {
    "apertus": Architecture(
        "ApertusForCausalLM",
        weights={**_WEIGHTS, **{part: f"{_LAYER}{key}" for part, key in CURVE.items()}},
        renamed={"head_dim": None},
        fixed={"rope_parameters": {"rope_type": "default"}},  # divisors are a tensor
    ),
    "arcee": Architecture("ArceeForCausalLM", paired=True),
    "chatglm": Architecture(
        "GlmForCausalLM",
        weights={**_WEIGHTS, **stored_together(_LAYER + "ffn_up", "gate", "up")},
        paired=True,
        partial="partial_rotary_factor",
    ),
    "cohere2": Architecture(
        "Cohere2ForCausalLM",
        {
            **_NORM,
            "logit_scale": ("logit_scale", float),
            "attention.sliding_window": ("sliding_window", int),
        },
        paired=True,
    ),
    "command-r": Architecture(
        "CohereForCausalLM",
        {**_NORM, "logit_scale": ("logit_scale", float)},
        renamed={"head_dim": None},
        paired=True,
    ),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", paired=True, bias="use_bias"),
    "ernie4_5-moe": Architecture(
        "Ernie4_5_MoeForCausalLM",
        {
            **_RMS,
            **_INNER,
            **_SHARED,
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
        "Exaone4ForCausalLM", {**_RMS, **_WINDOWS}, lacking={"sliding_window": None}, bias=""
    ),
    "falcon": Architecture(
        "FalconForCausalLM",
        {**_NORM, "tensor_data_layout": ("tensor_data_layout", str)},
        {**_WEIGHTS, **_QKV},
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
    "glm4": Architecture(
        "Glm4ForCausalLM",
        weights={**_WEIGHTS, **stored_together(_LAYER + "ffn_up", "gate", "up")},
        paired=True,
        partial="partial_rotary_factor",
    ),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        {
            **_RMS,
            **_INNER,
            **_experts("n_routed_experts"),
            "expert_shared_count": ("n_shared_experts", int),
            "expert_weights_norm": ("norm_topk_prob", bool),
            "expert_weights_scale": ("routed_scaling_factor", float),
            "leading_dense_block_count": ("first_k_dense_replace", int),
            "nextn_predict_layers": ("num_nextn_predict_layers", int),
        },
        weights={**_WEIGHTS, "layers.mlp_norm": _LAYER + "post_attention_norm"},
        absent={"expert_gating_func": 2, "nextn_predict_layers": 0},  # 2: the sigmoid
        partial="partial_rotary_factor",
        stored={"use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        _NORM,
        {**_WEIGHTS, **_QKV, "positions": "position_embd"},
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
        {**_WEIGHTS, **_QKV},
        {"num_key_value_heads": None, "head_dim": None, "rope_theta": "rotary_emb_base"},
        partial="rotary_pct",
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        {
            **_RMS,
            **_experts("num_local_experts"),
            "attention.sliding_window": ("sliding_window", int),
            "expert_feed_forward_length": ("intermediate_size", int),
        },
        {
            **_WEIGHTS,
            "layers.mlp_norm": _LAYER + "post_attention_norm",
            "layers.spare": _LAYER + "attn_sinks",
        },
        fixed={"rope_parameters": {"rope_type": "default"}},  # without rope.scaling keys
        scaled={"truncate": False},
    ),
    "granite": Architecture(
        "GraniteForCausalLM",
        {**_GRANITE, **_SHARED},
        renamed={"shared_expert_intermediate_size": None},  # of Granite 4, that of the MLP
        absent={"expert_used_count": 0},
        paired=True,
        unread=("ssm.",),  # of layers with states
    ),
    "granitemoe": Architecture(
        "GraniteMoeForCausalLM", {**_GRANITE, **_experts("num_local_experts")}, paired=True
    ),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM"),
    "hunyuan-moe": Architecture(
        "HunYuanMoEV1ForCausalLM",
        {
            **_RMS,
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
            **_RMS,
            **_INNER,
            **_experts("num_local_experts"),
            "interleave_moe_layer_step": ("interleave_moe_layer_step", int),
        },
        weights={**_WEIGHTS, **dict.fromkeys(("layers.q_norm", "layers.k_norm"), Filled(1.0))},
        renamed={
            "intermediate_size": "intermediate_size_mlp",
            "moe_intermediate_size": "intermediate_size",
        },
        paired=True,
    ),
    "mistral3": Architecture(
        "Ministral3ForCausalLM",
        {**_RMS, "attention.temperature_scale": ("rope_parameters.llama_4_scaling_beta", float)},
        lacking={"rope_parameters.rope_type": "default"},
        paired=True,
        bias="",
    ),
    "nemotron": Architecture(
        "NemotronForCausalLM",
        _NORM,
        renamed={"layer_norm_eps": "norm_eps"},
        partial="partial_rotary_factor",
    ),
    "olmo2": Architecture("Olmo2ForCausalLM"),
    "olmoe": Architecture(
        "OlmoeForCausalLM", {**_RMS, **_experts("num_experts")}, renamed={"head_dim": None}
    ),
    "phi2": Architecture(
        "PhiForCausalLM",
        _NORM,
        renamed={"head_dim": None},
        partial="partial_rotary_factor",
        bias="",
    ),
    "phimoe": Architecture(
        "PhimoeForCausalLM",
        {
            **_RMS,
            **_experts("num_local_experts"),
            "attention.sliding_window": ("sliding_window", int),
        },
        absent={"attention.sliding_window": 0},
        stored={"lm_head_bias": "output.bias"},
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        {**_RMS, "attention.sliding_window": ("sliding_window", int)},
        {**_WEIGHTS, **_QKV, **stored_together(_LAYER + "ffn_up", "gate", "up")},
        absent={"attention.sliding_window": 0},
        partial="partial_rotary_factor",
        bias="",
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", bias=""),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        {**_RMS, **_experts("num_experts"), **_INNER, **_SHARED},
        fixed={"norm_topk_prob": False},
        bias="qkv_bias",
    ),
    "qwen2vl": Architecture("Qwen2ForCausalLM", bias="", unread=_OF_IMAGES),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        {**_RMS, **_experts("num_experts"), **_INNER},
        fixed={"norm_topk_prob": True},
    ),
    "qwen3vl": Architecture("Qwen3ForCausalLM", unread=_OF_IMAGES),
    "qwen3vlmoe": Architecture(
        "Qwen3MoeForCausalLM",
        {**_RMS, **_experts("num_experts"), **_INNER},
        fixed={"norm_topk_prob": True},
        unread=_OF_IMAGES,
    ),
    "seed_oss": Architecture(
        "SeedOssForCausalLM",
        weights={**_WEIGHTS, "layers.mlp_norm": _LAYER + "post_attention_norm"},
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
        _NORM,
        renamed={"layer_norm_eps": "norm_epsilon"},
        bias="use_bias",
    ),
}
# architectures that other classes of Hugging Face have if a file has a certain key, not 0
WITH_KEY: Mapping[tuple[str, str], Architecture] = {
    ("granitemoe", "expert_shared_feed_forward_length"): Architecture(
        "GraniteMoeSharedForCausalLM",
        {
            **_GRANITE,
            **_experts("num_local_experts"),
            "expert_shared_feed_forward_length": ("shared_intermediate_size", int),
        },
        paired=True,
        unread=("ssm.",),
    ),
    ("llama", "expert_count"): Architecture(
        "MixtralForCausalLM", {**_RMS, **_experts("num_local_experts")}, paired=True, bias=""
    ),
    ("olmo2", "attention.sliding_window"): Architecture(
        "Olmo3ForCausalLM", {**_RMS, **_WINDOWS}, renamed={"head_dim": None}
    ),
}
