"""GGUF files of tiny checkpoints of any family, as llama.cpp's converter lays them out.

Names of weights are those of the `gguf` package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

import gguf_latent

# model_type: the architecture's name there
ARCHITECTURES = {
    "arcee": "arcee",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "youtu": "deepseek2",
    "minicpm3": "minicpm3",
    "ernie4_5": "ernie4_5",
    "exaone4": "exaone4",
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
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "mixtral": "llama",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi": "phi2",
    "phi3": "phi3",
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
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_topk": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
_PAIRED = ("arcee", "granite", "granitemoe", "mixtral", "smollm3")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


def write(folder: Path, path: Path, kind: str = "F32", *, together: bool = False) -> Path:
    """Write a checkpoint directory as a GGUF file whose large matrices have the type `kind`.

    `together`: see `gguf_latent`.
    """
    raw = json.loads((folder / "config.json").read_text())
    family = raw["model_type"]
    name = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, name)
    latent = gguf_latent.is_latent(raw)
    fields = _keys(raw)
    if latent:
        fields = gguf_latent.keys(raw, fields, together=together)
    for field, key in fields.items():
        _add(writer, f"{name}.{field}", key)
    arch = next(each for each, own in gguf.MODEL_ARCH_NAMES.items() if own == name)
    names = gguf.get_tensor_name_map(arch, raw.get("num_hidden_layers") or raw["n_layer"])
    weights = load_file(folder / "model.safetensors")
    if latent:
        weights = gguf_latent.tensors(raw, weights, together=together)
    for stored, values in _tensors(raw, weights):
        called = (
            stored if stored.startswith("blk.") else names.get_name(stored, (".weight", ".bias"))
        )
        assert called, stored
        matrix = values.ndim > 1 and not called.endswith("bias")
        matrix = matrix and "ffn_gate_inp" not in called and "embd" not in called
        type_ = gguf.GGMLQuantizationType[kind if matrix else "F32"]
        writer.add_tensor(called, gguf.quantize(values, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _keys(raw: dict[str, Any]) -> dict[str, Any]:
    found = {key: raw[field] for field, key in _KEYS.items() if raw.get(field) is not None}
    heads, width = found["attention.head_count"], found["embedding_length"]
    size = raw.get("head_dim") or width // heads
    if raw["model_type"] == "gpt2":
        return found
    if raw["model_type"] == "falcon":
        found |= {"attention.head_count_kv": 1, "tensor_data_layout": "jploski"}
    rope = raw["rope_parameters"]
    if raw["model_type"] == "olmo3":
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
    if raw["model_type"] == "phi3":
        found["attention.sliding_window"] = raw["sliding_window"] or 0
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
    changed: list[tuple[str, np.ndarray]] = []
    for name, values in found.items():
        changed += _changed(raw, family, name, values)
    return [(name, np.ascontiguousarray(values, np.float32)) for name, values in changed]


def _experts_of_gpt_oss(layer: str, name: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    bias = name.endswith("_bias")
    own = f"blk.{layer}.ffn_{{}}_exps.{'bias' if bias else 'weight'}"
    values = values if bias else values.swapaxes(1, 2)
    if "down_proj" in name:
        return [(own.format("down"), values)]
    return [(own.format(part), values[:, at::2]) for at, part in enumerate(("gate", "up"))]


def _changed(
    raw: dict[str, Any], family: str, name: str, values: np.ndarray
) -> list[tuple[str, np.ndarray]]:
    layer = name.split(".")[2] if ".layers." in name else ""
    if family == "gpt_oss" and ".experts." in name:
        return _experts_of_gpt_oss(layer, name, values)
    if name.endswith("self_attn.sinks"):
        return [(f"blk.{layer}.attn_sinks.weight", values)]
    if family.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
        return [(name, values + 1)]
    if family == "gpt2" and name.endswith(
        ("c_attn.weight", "attn.c_proj.weight", "mlp.c_proj.weight", "c_fc.weight")
    ):
        return [(name, values.T)]
    if "query_key_value" in name and family != "falcon":
        heads = raw["num_attention_heads"]
        parts = values.reshape(heads, 3, -1, *values.shape[1:])
        return [(name, parts.swapaxes(0, 1).reshape(values.shape))]
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
