"""What a `config.json` means to transformers, as facts that a `DecoderConfig` has too."""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_classes import CLASSES as CLASSES
from suffice.decoder.config import DecoderConfig
from suffice.decoder.rope import frequencies

# no rotary fields
UNTOLD = (
    *("GPT2LMHeadModel", "GPTJForCausalLM", "KimiLinearForCausalLM", "NemotronHForCausalLM"),
    "OPTForCausalLM",
)
NORMALIZED = (  # weights of experts, whatever the configuration says
    *("Ernie4_5_MoeForCausalLM", "GptOssForCausalLM", "GraniteMoeForCausalLM", "PhimoeForCausalLM"),
    *("GraniteMoeHybridForCausalLM", "GraniteMoeSharedForCausalLM", "HunYuanMoEV1ForCausalLM"),
    *("Llama4ForCausalLM", "MixtralForCausalLM", "Qwen3_5MoeForCausalLM"),
)
PARALLEL = (*("Cohere2ForCausalLM", "CohereForCausalLM", "FalconForCausalLM", "PhiForCausalLM"),)
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "squared_relu",
    "silu": "silu",
    "xielu": "xielu",
}
_LOGIT_SCALES = ("logit_scale", "lm_head_multiplier")
_FIRST_EXPERTS = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
_ACTS = ("hidden_act", "activation", "mlp_hidden_act")
_EPSILONS = (*("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),)
_BIASED = ("PhiForCausalLM", "Qwen2ForCausalLM")  # queries, whatever the configuration says
GEMMA4 = "Gemma4ForCausalLM"
REFUSALS = (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError)


def config_class(architecture: str) -> Any:
    """Return transformers' configuration class of an architecture."""
    module, prefix = CLASSES[architecture]
    path = f"transformers.models.{module}.configuration_{module}"
    return getattr(import_module(path), f"{prefix}Config")


def facts_of_theirs(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a configuration that transformers reads; its errors are in REFUSALS."""
    architecture = raw["architectures"][0]
    config = config_class(architecture).from_dict(deepcopy(raw))
    if architecture == "OPTForCausalLM":
        return _facts_of_opt(config)
    if architecture in ("GPT2LMHeadModel", "GPTJForCausalLM"):
        return _facts_of_gpt2(config)
    heads = config.num_attention_heads
    size = 1 if architecture == GEMMA4 else getattr(config, "head_dim", None)
    size = size or config.hidden_size // heads
    joint = hasattr(config, "kv_lora_rank")
    gemma = architecture in ("Gemma2ForCausalLM", "Gemma3ForCausalLM", GEMMA4)
    clamped = architecture == "GptOssForCausalLM"
    act = config.hidden_activation if gemma else _first(config, *_ACTS, otherwise="silu")
    falcon = architecture == "FalconForCausalLM"
    own = {} if architecture != GEMMA4 else _most_of_layers(config)
    return {
        "vocab": config.vocab_size,
        "width": config.hidden_size,
        "heads": heads,
        "kv_heads": (
            1 if falcon or joint or own else getattr(config, "num_key_value_heads", None) or heads
        ),
        "head_size": config.kv_lora_rank + config.qk_rope_head_dim if joint else size,
        "mlp_width": _mlp_width(config, architecture),
        "norm_eps": _first(config, *_EPSILONS),
        "activation": "clamped_swish" if clamped else _ACTIVATIONS[act],
        "scale": _joint_scale(config) if joint else _scale(config, size, gemma=gemma),
        "trained": min(config.max_position_embeddings, _chunk(config)),
        "tied": config.tie_word_embeddings,
        "windows": _windows(config),
        "states": _keep_states(config),
        "turns": _turns(config, architecture),
        "rotates": _rotates(config),
        "parallel": getattr(config, "use_parallel_residual", architecture in PARALLEL),
        "factors": [
            getattr(config, "embedding_multiplier", _embedding_factor(config, architecture)),
            _residual_factor(config),
            getattr(config, "logits_scaling", 1 / _first(config, *_LOGIT_SCALES, otherwise=1.0)),
        ],
        **_biases(config, architecture),
        "experts": _experts(config, architecture),
        "caps": [getattr(config, f"{name}_logit_softcapping", None) for name in ("attn", "final")],
        "spare": clamped,
        **own,
    }


def _most_of_layers(config: Any) -> dict[str, Any]:
    """Return the facts of a model whose layers differ: the most heads, and the largest."""
    layers = [config.per_layer_config[at] for at in range(config.num_hidden_layers)]
    return {
        "kv_heads": max(each.num_key_value_heads for each in layers),
        "head_size": max(each.head_dim for each in layers),
        "scale": 1.0,
    }


def _joint_scale(config: Any) -> float:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    given = getattr(config, "rope_parameters", {"rope_type": "default"})
    return float(yarn_apply_mscale(given, config.qk_head_dim**-0.5))


def _scale(config: Any, size: int, *, gemma: bool) -> float:
    scale = (getattr(config, "query_pre_attn_scalar", size) if gemma else size) ** -0.5
    if config.model_type == "falcon_h1":
        return float(scale * config.attention_in_multiplier**2 * config.key_multiplier)
    return float(getattr(config, "attention_multiplier", scale))


def _residual_factor(config: Any) -> float:
    if hasattr(config, "scale_depth"):
        return float(config.scale_depth / config.num_hidden_layers**0.5)
    return float(getattr(config, "residual_multiplier", 1.0))


def _biases(config: Any, architecture: str) -> dict[str, bool]:
    """Return whether queries and the MLP have biases."""
    names = ("attention_bias", "use_qkv_bias", "qkv_bias", "bias", "use_bias")
    biased = ("GPTNeoXForCausalLM", _BIASED[0])
    return {
        "attention bias": bool(_first(config, *names, otherwise=architecture in _BIASED)),
        "mlp bias": bool(
            _first(config, "mlp_bias", "bias", "use_bias", otherwise=architecture in biased)
        ),
    }


def _experts(config: Any, architecture: str) -> tuple[Any, ...] | None:
    """Return number, choice, widths and normalization of experts, and the layers without."""
    kinds = getattr(config, "layers_block_type", ())
    few = config.model_type == "nemotron_h"  # a layer of experts is one of its own
    if not hasattr(config, "num_experts_per_tok") or not _count(config):
        return None
    if few and "moe" not in kinds:
        return None
    own_rule = architecture in NORMALIZED
    given = getattr(config, "mlp_only_layers", [])
    step = _first(config, "decoder_sparse_step", "moe_layer_interval", otherwise=1)
    return (
        _count(config),
        config.num_experts_per_tok,
        _first(config, "moe_intermediate_size", "intermediate_size"),
        _shared(config, architecture),
        bool(getattr(config, "norm_topk_prob", own_rule)),
        [kind == "mlp" for kind in kinds]
        if few
        else [
            at in given
            or at not in (getattr(config, "moe_layers", None) or range(at + 1))
            or (at + 1) % step > 0
            or at < _first(config, *_FIRST_EXPERTS, otherwise=0)
            or at > getattr(config, "moe_layer_end_index", at)
            or (getattr(config, "mlp_layer_types", None) or {at: ""})[at] == "dense"
            for at in range(config.num_hidden_layers)
        ],
    )


def _shared(config: Any, architecture: str) -> int:
    """Return the width of the expert that all rows share."""
    if architecture in ("HunYuanMoEV1ForCausalLM", "Llama4ForCausalLM"):
        return int(config.intermediate_size)
    if architecture == "NemotronHForCausalLM":
        return int(config.moe_shared_expert_intermediate_size)
    if hasattr(config, "n_shared_experts"):
        return int(config.n_shared_experts * config.moe_intermediate_size)
    if hasattr(config, "moe_num_shared_experts"):
        return int(config.moe_num_shared_experts * config.moe_intermediate_size)
    names = ("shared_expert_intermediate_size", "shared_intermediate_size")
    return int(_first(config, *names, otherwise=0))


def _count(config: Any) -> int:
    return int(_first(config, "num_local_experts", "num_experts"))


def _mlp_width(config: Any, architecture: str) -> int:
    if architecture == "Lfm2ForCausalLM":
        from transformers.models.lfm2.modeling_lfm2 import Lfm2MLP

        with torch.device("meta"):
            return int(Lfm2MLP(config).w1.out_features)
    if not hasattr(config, "intermediate_size") and hasattr(config, "moe_intermediate_size"):
        return int(config.shared_expert_intermediate_size)  # no layer is dense
    if hasattr(config, "shared_intermediate_size") and not _count(config):
        return int(config.shared_intermediate_size)
    return int(_first(config, "intermediate_size_mlp", "intermediate_size", "ffn_hidden_size"))


def _keep_states(config: Any) -> list[bool]:
    count = config.num_hidden_layers
    kinds = _first(config, "layer_types", "layers_block_type") or ["full_attention"] * count
    return [kind in ("conv", "hybrid", "linear_attention", "mamba") for kind in kinds]


def _first(config: Any, *names: str, otherwise: Any = None) -> Any:
    return next((getattr(config, name) for name in names if hasattr(config, name)), otherwise)


def _rotates(config: Any) -> list[bool]:
    if config.model_type in ("kimi_linear", "nemotron_h"):
        return [False] * config.num_hidden_layers
    windows = _windows(config)
    if config.model_type == "granitemoehybrid":
        return [config.position_embedding_type == "rope"] * len(windows)
    if config.model_type in ("cohere2", "exaone4") and any(windows):
        return [window is not None for window in windows]
    given = getattr(config, "no_rope_layers", [1] * config.num_hidden_layers)
    return [bool(each) for each in given[: config.num_hidden_layers]]


def _embedding_factor(config: Any, architecture: str) -> float:
    if architecture.startswith("Gemma"):
        return float(config.hidden_size**0.5)
    return float(getattr(config, "scale_emb", 1.0))


def _facts_of_gpt2(config: Any) -> dict[str, Any]:
    size = config.n_embd // config.n_head
    return {
        "vocab": config.vocab_size,
        "width": config.n_embd,
        "heads": config.n_head,
        "mlp_width": 4 * config.n_embd if config.n_inner is None else config.n_inner,
        "activation": _ACTIVATIONS[config.activation_function],
        "trained": config.n_positions,
        "tied": config.tie_word_embeddings,
        "scale": size**-0.5 if getattr(config, "scale_attn_weights", True) else 1.0,
        "norm_eps": config.layer_norm_epsilon,
        "layers": config.n_layer,
    }


def _facts_of_opt(config: Any) -> dict[str, Any]:
    return {
        "vocab": config.vocab_size,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "mlp_width": config.ffn_dim,
        "activation": _ACTIVATIONS[config.activation_function],
        "trained": config.max_position_embeddings,
        "tied": config.tie_word_embeddings,
        "embed_width": config.word_embed_proj_dim,
        "before": config.do_layer_norm_before,
        "final": config.do_layer_norm_before and not config._remove_final_layer_norm,
        "bias": config.enable_bias,
        "layers": config.num_hidden_layers,
    }


def _chunk(config: Any) -> int:
    """Return the tokens within which layers attend, if some do."""
    if "chunked_attention" in (getattr(config, "layer_types", None) or []):
        return int(config.attention_chunk_size)
    return int(config.max_position_embeddings)


def _windows(config: Any) -> list[int | None]:
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [getattr(config, "sliding_window", None)] * config.num_hidden_layers
    assert len(kinds) == config.num_hidden_layers
    return [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]


def _turns(config: Any, architecture: str) -> list[tuple[list[float], float]]:
    """Return the frequencies and the factor of each rotation, of the models' own modules."""
    if not any(_rotates(config)):
        return []
    module, _ = CLASSES[architecture]
    models = import_module(f"transformers.models.{module}.modeling_{module}")
    name = architecture.partition("For")[0]
    text = f"{name}TextRotaryEmbedding"  # of models that have other parts
    made = getattr(models, text if hasattr(models, text) else f"{name}RotaryEmbedding")(config)
    if not hasattr(made, "sliding_attention_inv_freq"):
        return [(made.inv_freq.tolist(), float(made.attention_scaling))]
    return [
        (
            getattr(made, f"{kind}_inv_freq").tolist(),
            float(getattr(made, f"{kind}_attention_scaling")),
        )
        for kind in ("sliding_attention", "full_attention")
        if kind in made.layer_types
    ]


def facts_of_ours(config: DecoderConfig, architecture: str) -> dict[str, Any]:
    """Return the same facts of a decoder's configuration."""
    shared = {
        "vocab": config.vocab,
        "width": config.width,
        "heads": config.heads,
        "mlp_width": config.mlp_width,
        "activation": config.activation,
        "trained": config.trained_positions,
        "tied": config.tied,
    }
    if architecture == "OPTForCausalLM":
        assert config.kv_heads == config.heads
        return shared | {
            "embed_width": config.embed_width,
            "before": config.placement == "pre",
            "final": config.final_norm,
            "bias": config.biases == {"q", "k", "v", "o", "up", "down"},
            "layers": len(config.layers),
        }
    if architecture in ("GPT2LMHeadModel", "GPTJForCausalLM"):
        return shared | {
            "scale": config.attention_scale,
            "norm_eps": config.norm_eps,
            "layers": len(config.layers),
        }
    used = {layer.rope for layer in config.layers}
    return shared | {
        "kv_heads": config.kv_heads,
        "head_size": config.head_size,
        "norm_eps": config.norm_eps,
        "scale": config.attention_scale,
        "windows": [layer.window for layer in config.layers],
        "states": [layer.keeps_state for layer in config.layers],
        "turns": [_turns_of_ours(config, at) for at in range(len(config.ropes)) if at in used],
        "rotates": [layer.rope is not None for layer in config.layers],
        "parallel": config.parallel,
        "factors": [config.embed_scale, config.residual_scale, round(1 / config.logit_scale, 12)],
        "attention bias": bool(config.biases & {"q", "kv"}),
        "mlp bias": "up" in config.biases,
        "experts": config.experts
        and (
            config.experts.count,
            config.experts.chosen,
            config.experts.inner,
            config.experts.shared,
            config.experts.steps[-1] != "top",
            [layer.dense for layer in config.layers],
        ),
        "caps": [config.score_cap or None, config.logit_cap or None],
        "spare": config.spare_logits,
    }


def _turns_of_ours(config: DecoderConfig, rope: int) -> tuple[list[float], float]:
    size = config.rotary_size(rope)
    found, factor = frequencies(config.ropes[rope], size, config.trained_positions)
    return found.tolist(), factor


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return the names of the facts that differ; frequencies may by a relative 1e-6."""
    assert ours.keys() == theirs.keys()
    exact = [name for name in ours if name != "turns" and ours[name] != theirs[name]]
    mine, others = ours.get("turns", []), theirs.get("turns", [])
    close = len(mine) == len(others) and all(
        len(a[0]) == len(b[0])
        and np.allclose(a[0], b[0], rtol=1e-6, atol=0)
        and np.isclose(a[1], b[1], rtol=1e-6, atol=0)
        for a, b in zip(mine, others, strict=True)
    )
    return exact if close else [*exact, "turns"]
