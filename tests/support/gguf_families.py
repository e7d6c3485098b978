"""GGUF files of tiny checkpoints of any family, as llama.cpp's converter lays them out.

Names of weights are those of the `gguf` package.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

import gguf_gemma4
import gguf_latent
import gguf_stateful

# model_type: the architecture's name there
ARCHITECTURES = {
    **gguf_stateful.ARCHITECTURES,
    "apertus": "apertus",
    "arcee": "arcee",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "youtu": "deepseek2",
    "minicpm3": "minicpm3",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone4": "exaone4",
    "glm": "chatglm",
    "glm4": "glm4",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "nemotron": "nemotron",
    "olmo3": "olmo2",
    "seed_oss": "seed_oss",
    "starcoder2": "starcoder2",
    "falcon": "falcon",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma4_text": "gemma4",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "granitemoehybrid": "granite",
    "granitemoeshared": "granitemoe",
    "llama4_text": "llama4",
    "ministral3": "mistral3",
    "mixtral": "llama",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi": "phi2",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
}
_KEYS = {  # field of config.json: key
    "max_position_embeddings": "context_length",
    "n_positions": "context_length",
    "hidden_size": "embedding_length",
    "n_embd": "embedding_length",
    "num_hidden_layers": "block_count",
    "n_layer": "block_count",
    "intermediate_size": "feed_forward_length",
    "ffn_hidden_size": "feed_forward_length",
    "n_inner": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "logit_scale": "logit_scale",
    "use_parallel_residual": "use_parallel_residual",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
    "moe_k": "expert_used_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "moe_num_experts": "expert_count",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_topk": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
}
_PAIRED = (*("arcee", "bamba", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared"),)
_PAIRED += ("ministral3", "mixtral", "smollm3")
_WHOLE = ("ffn_gate_inp", "embd", "conv1d", "shortconv.conv", "ssm_norm")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


def write(
    folder: Path,
    path: Path,
    kind: str = "F32",
    name: str = "",
    keys: dict[str, Any] | None = None,
    *,
    together: bool = False,
    joined: bool = False,
) -> Path:
    """Write a checkpoint directory as a GGUF file whose large matrices have the type `kind`.

    `name` is another architecture than the usual one, `keys` are further ones of it, None for
    those that it shall lack. `together`: see `gguf_latent`. `joined`: what some files have as one
    tensor is one.
    """
    raw = json.loads((folder / "config.json").read_text())
    raw["joined"] = joined
    raw.setdefault("num_hidden_layers", len(raw.get("layers_block_type", ())) or raw.get("n_layer"))
    if not name:
        name = ARCHITECTURES[raw["model_type"]]
        if name == "granite" and gguf_stateful.keeps_states(raw):
            name = gguf_stateful.HYBRID
        if "moe" in raw.get("layers_block_type", ()):
            name = gguf_stateful.OF_EXPERTS
    writer = gguf.GGUFWriter(path, name)
    latent = gguf_latent.is_latent(raw)
    fields = gguf_gemma4.keys(raw, _keys(raw)) if name == "gemma4" else _keys(raw)
    if latent:
        fields = gguf_latent.keys(raw, fields, together=together)
    for field, key in (fields | (keys or {})).items():
        if key is not None:
            _add(writer, f"{name}.{field}", key)
    _add_curves(writer, load_file(folder / "model.safetensors"))
    arch = next(each for each, own in gguf.MODEL_ARCH_NAMES.items() if own == name)
    names = gguf.get_tensor_name_map(arch, raw["num_hidden_layers"] + 1)  # one may draft
    weights = load_file(folder / "model.safetensors")
    if latent:
        weights = gguf_latent.tensors(raw, weights, together=together)
    for stored, values in _tensors(raw, weights):
        prefix = "model." if ".feed_forward.experts." in stored else ""  # as its table has them
        called = (
            stored
            if stored.startswith(("blk.", "rope_"))
            else names.get_name(stored.removeprefix(prefix), (".weight", ".bias"))
        )
        assert called, stored
        matrix = values.ndim > 1 and called.endswith(".weight")
        matrix = matrix and not any(part in called for part in _WHOLE)
        type_ = gguf.GGMLQuantizationType[kind if matrix else "F32"]
        writer.add_tensor(called, gguf.quantize(values, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_curves(writer: gguf.GGUFWriter, stored: dict[str, Any]) -> None:
    """Add the parameters of activations, which are metadata there."""
    for part in ("alpha_p", "alpha_n", "beta", "eps"):
        own = sorted(name for name in stored if name.endswith(f".act_fn.{part}"))
        if own:  # fewer than 10 layers
            getattr(writer, f"add_xielu_{part}")([float(stored[name].reshape(())) for name in own])


def _keys(raw: dict[str, Any]) -> dict[str, Any]:
    found = {key: raw[field] for field, key in _KEYS.items() if raw.get(field) is not None}
    heads, width = found["attention.head_count"], found["embedding_length"]
    size = raw.get("head_dim") or width // heads
    if raw["model_type"] == "gpt2":
        return found
    if raw["model_type"] == "falcon":
        found |= {"attention.head_count_kv": 1, "tensor_data_layout": "jploski"}
    rope = raw.get("rope_parameters") or {"rope_theta": 1.0}  # of a model without positions
    if raw["model_type"] in ("olmo3", "gemma4_text"):
        rope = rope["full_attention"]
    if raw["model_type"] == "hunyuan_v1_dense":  # what the converter computes of alpha
        rope = {"rope_theta": rope["rope_theta"] * rope.get("alpha", 1.0) ** (size / (size - 2))}
    if raw["model_type"] in ("exaone4", "olmo3") and raw["sliding_window"]:
        found["attention.sliding_window"] = raw["sliding_window"]
        slides = [each == "sliding_attention" for each in raw["layer_types"]]
        found["attention.sliding_window_pattern"] = slides
    found["rope.freq_base"] = float(rope["rope_theta"])
    found["rope.dimension_count"] = int(rope.get("partial_rotary_factor", 1.0) * size)
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        if raw.get(field) is not None:
            found[field] = raw[field]
    if raw["model_type"] in ("cohere2", "gemma2", "gpt_oss"):
        found["attention.sliding_window"] = raw["sliding_window"]
    if rope.get("rope_type") == "yarn":
        found["rope.scaling.type"] = "yarn"
        found["rope.scaling.factor"] = float(rope["factor"])
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if raw["model_type"] in ("phi3", "phimoe"):
        found["attention.sliding_window"] = raw["sliding_window"] or 0
    found |= _more(raw, rope)
    return gguf_stateful.keys(raw, found) if gguf_stateful.keeps_states(raw) else found


def _more(raw: dict[str, Any], rope: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that only some converters write."""
    found: dict[str, Any] = {}
    if rope.get("rope_type") == "longrope":
        stretch, length = raw["max_position_embeddings"], rope["original_max_position_embeddings"]
        factor = math.sqrt(1 + math.log(stretch / length) / math.log(length))
        found["rope.scaling.original_context_length"] = length
        found["rope.scaling.attn_factor"] = factor
    if raw["model_type"] == "granitemoehybrid" and not gguf_stateful.keeps_states(raw):
        found |= {"ssm.conv_kernel": 4, "expert_used_count": 0, "rope.scaling.finetuned": True}
        found["attention.head_count_kv"] = [raw["num_key_value_heads"]] * raw["num_hidden_layers"]
    if raw["model_type"] == "ministral3":
        found["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
        found["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
    if raw["model_type"] == "llama4_text":
        found["feed_forward_length"] = raw["intermediate_size_mlp"]
        found["expert_feed_forward_length"] = raw["intermediate_size"]
    if raw["model_type"] == "glm4_moe":
        found |= {"expert_gating_func": 2, "expert_weights_norm": raw["norm_topk_prob"]}
        found |= {"nextn_predict_layers": 1, "block_count": raw["num_hidden_layers"] + 1}
    if raw["model_type"] == "ernie4_5_moe":
        found["leading_dense_block_count"] = raw["moe_layer_start_index"]
    return found


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _tensors(raw: dict[str, Any], stored: dict[str, Any]) -> list[tuple[str, np.ndarray]]:
    """Return the tensors under Hugging Face's names, or llama.cpp's where one becomes several."""
    family, found = raw["model_type"], dict(stored)
    for name in list(found):
        match = _EXPERT.fullmatch(name)
        if match and match[2] == "0":
            count = sum(match[1] in each and f".{match[3]}." in each for each in stored)
            parts = [found.pop(f"{match[1]}.{e}.{match[3]}.weight") for e in range(count)]
            found[f"{match[1]}.{match[3]}.weight"] = np.stack(parts)
    rope = raw.get("rope_parameters") or {}
    changed: list[tuple[str, np.ndarray]] = [
        (f"rope_factors_{part}.weight", np.array(rope[f"{part}_factor"]))
        for part in ("long", "short")
        if f"{part}_factor" in rope
    ]
    if family == "gemma4_text":
        changed.append(gguf_gemma4.divisors(raw))
    if family == "glm":  # its first files have queries, keys and values as one
        for end in ("weight", "bias"):
            for at in range(raw["num_hidden_layers"]):
                own = f"model.layers.{at}.self_attn."
                parts = [found.pop(f"{own}{part}_proj.{end}") for part in "qkv"]
                changed.append((f"blk.{at}.attn_qkv.{end}", np.concatenate(parts)))
    last = f"blk.{raw['num_hidden_layers']}.nextn.hnorm.weight"
    if last not in found and (family == "glm4_moe" or gguf_stateful.drafts(raw)):
        changed.append((last, np.ones(raw["hidden_size"])))  # a part of the layer that drafts
    for name, values in found.items():
        if ".act_fn." in name:  # these are metadata
            continue
        changed += _changed(raw, family, name, values)
    changed = gguf_stateful.joined(changed) if raw["joined"] else changed
    return [(name, np.ascontiguousarray(values, np.float32)) for name, values in changed]


def _transposed_experts(
    layer: str, name: str, values: np.ndarray, *, alternating: bool
) -> list[tuple[str, np.ndarray]]:
    bias = name.endswith("_bias")
    own = f"blk.{layer}.ffn_{{}}_exps.{'bias' if bias else 'weight'}"
    values = values if bias else values.swapaxes(1, 2)
    if "down_proj" in name:
        return [(own.format("down"), values)]
    halves = (values[:, ::2], values[:, 1::2]) if alternating else np.split(values, 2, axis=1)
    return [(own.format(part), each) for part, each in zip(("gate", "up"), halves, strict=True)]


def _shared_mlp(
    layer: str, name: str, values: np.ndarray, kind: str
) -> list[tuple[str, np.ndarray]]:
    if "output_linear" in name:
        return [(f"blk.{layer}.ffn_down{kind}.weight", values)]
    gate, up = np.split(values, 2)
    return [
        (f"blk.{layer}.ffn_{own}{kind}.weight", each) for own, each in (("gate", gate), ("up", up))
    ]


def _changed(
    raw: dict[str, Any], family: str, name: str, values: np.ndarray
) -> list[tuple[str, np.ndarray]]:
    layer = name.split(".")[2] if ".layers." in name else ""
    if family == "gemma4_text" and (own := gguf_gemma4.changed(layer, name, values)):
        return own
    if (made := gguf_stateful.changed(raw, layer, name, values)) is not None:
        return made
    if family in ("gpt_oss", "llama4_text") and ".experts." in name:
        return _transposed_experts(layer, name, values, alternating=family == "gpt_oss")
    if name.endswith("self_attn.sinks"):
        return [(f"blk.{layer}.attn_sinks.weight", values)]
    if family in ("gemma", "gemma2", "nemotron") and name.endswith("norm.weight"):
        return [(name, values + 1)]
    if family == "gpt2" and name.endswith(
        ("c_attn.weight", "attn.c_proj.weight", "mlp.c_proj.weight", "c_fc.weight")
    ):
        return [(name, values.T)]
    if "query_key_value" in name and family != "falcon":
        heads = raw["num_attention_heads"]
        parts = values.reshape(heads, 3, -1, *values.shape[1:])
        return [(name, parts.swapaxes(0, 1).reshape(values.shape))]
    if ".shared_mlp." in name and family.startswith("granite"):
        return _shared_mlp(layer, name, values, "_shexp" if raw["num_local_experts"] else "")
    if name.endswith("e_score_correction_bias"):
        return [(f"blk.{layer}.exp_probs_b.bias", values.reshape(-1))]
    if name.endswith("input_linear.weight"):
        gate, up = np.split(values, 2, axis=1)
        return [
            (f"blk.{layer}.ffn_{own}_exps.weight", each)
            for own, each in (("gate", gate), ("up", up))
        ]
    if name.endswith("shared_expert_gate.weight"):
        return [(name, values[0])]
    if family in _PAIRED and re.search(r"\.[qk]_proj\.", name):
        heads = raw["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        parts = values.reshape(heads, 2, -1, *values.shape[1:])
        return [(name, parts.swapaxes(1, 2).reshape(values.shape))]
    return [(name, values)]
