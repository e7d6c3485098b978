"""Keys and tensors of GGUF files of Gemma 4, as llama.cpp's converter writes them."""

from __future__ import annotations

from typing import Any

import numpy as np


def keys(raw: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration, from those that all families have."""
    kinds, rope = raw["layer_types"], raw["rope_parameters"]
    whole = {int(at): own for at, own in raw["per_layer_config"].items()}
    first = len(kinds) - raw["num_kv_shared_layers"]
    size = next(iter(whole.values()))["head_dim"]
    heads = [
        whole.get(at, {}).get("num_key_value_heads", raw["num_key_value_heads"])
        for at in range(len(kinds))
    ]
    own = {
        "attention.head_count_kv": heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.key_length_swa": raw["head_dim"],
        "attention.value_length_swa": raw["head_dim"],
        "attention.shared_kv_layers": raw["num_kv_shared_layers"],
        "attention.sliding_window": raw["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "embedding_length_per_layer_input": raw["hidden_size_per_layer_input"],
        "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        "rope.dimension_count": size,
        "rope.dimension_count_swa": raw["head_dim"],
    }
    if raw["use_double_wide_mlp"]:
        width = raw["intermediate_size"]
        own["feed_forward_length"] = [width * (1 + (at >= first)) for at in range(len(kinds))]
    if raw["enable_moe_block"]:
        own["expert_used_count"] = raw["top_k_experts"]
    return found | own


def divisors(raw: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Return the tensor that says which pairs of a global layer's heads turn."""
    size = next(iter(raw["per_layer_config"].values()))["head_dim"]
    part = raw["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    found = np.full(size // 2, 1e30, np.float32)
    found[: int(part * size // 2)] = 1
    return "rope_freqs.weight", found


def changed(layer: str, name: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return what a tensor becomes; nothing if it is as those of all families."""
    at = f"blk.{layer}."
    ends = {
        ".layer_scalar": "layer_output_scale.weight",
        ".router.scale": "ffn_gate_inp.scale",
        ".router.proj.weight": "ffn_gate_inp.weight",
        ".router.per_expert_scale": "ffn_down_exps.scale",
        ".experts.gate_up_proj": "ffn_gate_up_exps.weight",
        ".experts.down_proj": "ffn_down_exps.weight",
    }
    return [(at + own, values) for end, own in ends.items() if layer and name.endswith(end)]
