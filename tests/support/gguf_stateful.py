"""What llama.cpp's converter makes of models whose layers keep states; see `gguf_families`."""

from __future__ import annotations

from typing import Any

import numpy as np

# model_type: the architecture's name there
ARCHITECTURES = {
    "bamba": "granitehybrid",
    "falcon_h1": "falcon-h1",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "nemotron_h": "nemotron_h",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
HYBRID = "granitehybrid"
OF_EXPERTS = "nemotron_h_moe"
_QWEN = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_OF_DELTA = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
_OF_MAMBA = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}
_OF_NEMOTRON = {
    "conv_kernel": "ssm.conv_kernel",
    "ssm_state_size": "ssm.state_size",
    "n_groups": "ssm.group_count",
    "mamba_num_heads": "ssm.time_step_rank",
}


def keeps_states(raw: dict[str, Any]) -> bool:
    """Return whether a configuration is of a model that has layers with states."""
    return raw["model_type"] in ARCHITECTURES or "linear_attention" in raw.get("layer_types", ())


def keys(raw: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a file, given those that it has as any other file."""
    family = raw["model_type"]
    if family in _QWEN:
        return found | _of_qwen(raw)
    if family.startswith("lfm2"):
        return _of_lfm(raw, found)
    if family == "nemotron_h":
        return _of_nemotron(raw, found)
    if family == "falcon_h1":
        return _of_falcon(raw, found)
    attends = raw.get("attn_layer_indices")
    if attends is None:
        attends = [at for at, kind in enumerate(raw["layer_types"]) if kind == "full_attention"]
    layers = range(raw["num_hidden_layers"])
    return (
        found
        | {key: raw[field] for field, key in _OF_MAMBA.items()}
        | {
            "ssm.inner_size": raw["mamba_expand"] * raw["hidden_size"],
            "attention.head_count_kv": [
                raw["num_key_value_heads"] if at in attends else 0 for at in layers
            ],
            "rope.scaling.finetuned": family == "bamba",
        }
    )


def _of_qwen(raw: dict[str, Any]) -> dict[str, Any]:
    drafts = {"nextn_predict_layers": 1, "block_count": raw["num_hidden_layers"] + 1}
    sections = {"rope.dimension_sections": [11, 11, 10, 0]}
    return {
        **{key: raw[field] for field, key in _OF_DELTA.items()},
        **(drafts | sections if raw["model_type"] != "qwen3_next" else {}),
        "ssm.inner_size": raw["linear_value_head_dim"] * raw["linear_num_value_heads"],
        "full_attention_interval": raw["layer_types"].index("full_attention") + 1,
    }


def _of_lfm(raw: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    heads = raw["num_key_value_heads"]
    found |= {
        "attention.layer_norm_rms_epsilon": found.pop("attention.layer_norm_epsilon"),
        "attention.head_count_kv": [0 if kind == "conv" else heads for kind in raw["layer_types"]],
        "shortconv.l_cache": raw["conv_L_cache"],
        "vocab_size": raw["vocab_size"],
    }
    if raw["model_type"] == "lfm2":
        multiple = raw["block_multiple_of"]
        width = int(raw["block_ffn_dim_multiplier"] * int(2 * raw["intermediate_size"] / 3))
        return found | {"feed_forward_length": -(-width // multiple) * multiple}
    del found["expert_weights_scale"]
    return found | {
        "leading_dense_block_count": raw["num_dense_layers"],
        "expert_gating_func": 2,
    }


def _of_falcon(raw: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    del found["embedding_scale"]  # in the weights, as all multipliers are
    own = {key: raw[field] for field, key in _OF_MAMBA.items()}
    width = {"attention.value_length": raw["head_dim"], "vocab_size": raw["vocab_size"]}
    return found | own | width | {"ssm.inner_size": raw["mamba_d_ssm"]}


def _of_nemotron(raw: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    kinds, heads, width = raw["layers_block_type"], raw["num_key_value_heads"], raw["head_dim"]
    experts = "moe" in kinds
    own = {}
    if experts:
        own = {
            "expert_group_count": raw["n_group"],
            "expert_shared_feed_forward_length": raw["moe_shared_expert_intermediate_size"],
            "expert_weights_norm": raw["norm_topk_prob"],
        }
        if raw.get("moe_latent_size"):
            own["moe_latent_size"] = raw["moe_latent_size"]
    inner = raw["moe_intermediate_size" if experts else "intermediate_size"]
    return (
        {key: each for key, each in found.items() if experts or not key.startswith("expert")}
        | own
        | {key: raw[field] for field, key in _OF_NEMOTRON.items()}
        | {
            "attention.layer_norm_rms_epsilon": raw["layer_norm_epsilon"],
            "attention.head_count_kv": [heads * (kind == "full_attention") for kind in kinds],
            "attention.value_length": width,
            "feed_forward_length": [inner * (kind in ("mlp", "moe")) for kind in kinds],
            "rope.dimension_count": width + 16,  # of heads of another size
            "rope.scaling.finetuned": False,
            "ssm.inner_size": raw["mamba_num_heads"] * raw["mamba_head_dim"],
        }
    )


def drafts(raw: dict[str, Any]) -> bool:
    """Return whether a file of a family has a layer that drafts."""
    return raw["model_type"] in _QWEN[1:]


def changed(
    raw: dict[str, Any], layer: str, name: str, values: np.ndarray
) -> list[tuple[str, np.ndarray]] | None:
    """Return what a tensor becomes, by names of the file or Hugging Face's; None: it stays."""
    family, end = raw["model_type"], name.removesuffix(".weight").rpartition(".")[2]
    own = f"blk.{layer}."
    if family == "falcon_h1":
        values = _multiplied(raw, end, values)
        if ".mamba." not in name or end in ("in_proj", "out_proj"):
            return [(name, values)]
    if family == "nemotron_h" and ".mixer.experts." in name:
        return [(f"{own}ffn_{end.removesuffix('_proj')}_exps.weight", values)]
    if end == "expert_bias":
        return [(f"{own}exp_probs_b.bias", values)]
    if name.endswith(".conv.conv.weight"):
        return [(f"{own}shortconv.conv.weight", values[:, 0])]
    if ".linear_attn." in name:
        return _of_delta(raw, own, end, values)
    if family in _QWEN and name.endswith("norm.weight"):
        return [(name, values + 1)]
    if ".conv1d." in name:
        part = "bias" if name.endswith(".bias") else "weight"
        return [(f"{own}ssm_conv1d.{part}", values[:, 0] if part == "weight" else values)]
    if end in ("A_log", "D"):
        called = "ssm_a" if end == "A_log" else "ssm_d"
        return [(own + called, (-np.exp(values) if end == "A_log" else values)[:, None])]
    if end == "dt_bias":
        return [(f"{own}ssm_dt.bias", values)]
    if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        groups = raw.get("mamba_n_groups") or raw["n_groups"]
        return [(f"{own}ssm_norm.weight", values.reshape(groups, -1))]
    return None


def _multiplied(raw: dict[str, Any], end: str, values: np.ndarray) -> np.ndarray:
    """Return a matrix of Falcon-H1 with the multipliers of what it reads and gives."""
    gates, outputs = raw["mlp_multipliers"]
    into = raw["attention_in_multiplier"]
    by = {
        "down_proj": outputs,
        "gate_proj": gates,
        "k_proj": raw["key_multiplier"] * into,
        "q_proj": into,
        "v_proj": into,
        "o_proj": raw["attention_out_multiplier"],
        "out_proj": raw["ssm_out_multiplier"],
        "lm_head": raw["lm_head_multiplier"],
        "embed_tokens": raw["embedding_multiplier"],
    }
    if end != "in_proj":
        return np.float32(by.get(end, 1.0)) * values
    keys_ = raw["mamba_n_groups"] * raw["mamba_d_state"]
    counts = [raw["mamba_d_ssm"]] * 2 + [keys_] * 2 + [raw["mamba_n_heads"]]
    each = np.repeat(np.float32(raw["ssm_multipliers"]), counts)
    return np.float32(raw["ssm_in_multiplier"]) * each[:, None] * values


def joined(tensors: list[tuple[str, np.ndarray]]) -> list[tuple[str, np.ndarray]]:
    """Return tensors with the gates and values of experts as one, expert by expert."""
    found = dict(tensors)
    for name in [each for each in found if each.endswith(".experts.gate_proj.weight")]:
        up = found.pop(name.replace("gate_proj", "up_proj"))
        layer = name.split(".")[2]
        both = np.concatenate([found.pop(name), up], axis=1)
        found[f"blk.{layer}.ffn_gate_up_exps.weight"] = both
    return [*found.items()]


def _of_delta(
    raw: dict[str, Any], own: str, end: str, values: np.ndarray
) -> list[tuple[str, np.ndarray]]:
    """Return a weight of the delta rule; Qwen3.5's heads take the groups of keys in turn."""
    groups, heads = raw["linear_num_key_heads"], raw["linear_num_value_heads"]
    keys_, size = groups * raw["linear_key_head_dim"], raw["linear_value_head_dim"]

    def in_turn(rows: np.ndarray, each: int) -> np.ndarray:
        if raw["model_type"] == "qwen3_next":
            return rows
        parts = rows.reshape(groups, heads // groups, each, *rows.shape[1:])
        return parts.swapaxes(0, 1).reshape(rows.shape)

    def mixed(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[: 2 * keys_], in_turn(rows[2 * keys_ :], size)])

    if end == "in_proj_qkvz" and raw["joined"]:
        return [(f"{own}ssm_in.weight", values)]
    if end == "in_proj_qkvz":
        split = [size_ * heads // groups for size_ in (size, size)]
        head = raw["linear_key_head_dim"]
        parts = values.reshape(groups, -1, values.shape[1])
        cuts = np.cumsum([head, head, split[0]])
        q, k, v, z = (each.reshape(-1, values.shape[1]) for each in np.split(parts, cuts, axis=1))
        return [(f"{own}attn_qkv.weight", np.concatenate([q, k, v])), (f"{own}attn_gate.weight", z)]
    named = {
        "A_log": ("ssm_a", lambda: in_turn(-np.exp(values), 1)),
        "conv1d": ("ssm_conv1d.weight", lambda: mixed(values[:, 0])),
        "dt_bias": ("ssm_dt.bias", lambda: in_turn(values, 1)),
        "in_proj_a": ("ssm_alpha.weight", lambda: in_turn(values, 1)),
        "in_proj_b": ("ssm_beta.weight", lambda: in_turn(values, 1)),
        "in_proj_ba": ("ssm_ba.weight", lambda: values),
        "in_proj_qkv": ("attn_qkv.weight", lambda: mixed(values)),
        "in_proj_z": ("attn_gate.weight", lambda: in_turn(values, size)),
        "norm": ("ssm_norm.weight", lambda: values),
        "out_proj": ("ssm_out.weight", lambda: in_turn(values.T, size).T),
    }
    called, made = named[end]
    return [(own + called, made())]
