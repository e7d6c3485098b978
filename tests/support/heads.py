"""Heads of EAGLE-3 with random weights, as they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WIDTH, HEADS, KV_HEADS, INNER = 48, 4, 2, 80
Weights = dict[str, torch.Tensor]


def read(folder: Path) -> dict[str, Any]:
    """Return the configuration of a folder."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


def method(head: Path) -> str:
    """Return the name of the speculator of a head."""
    return "eagle3" if read(head)["architectures"] == ["LlamaForCausalLMEagle3"] else "dflash"


def text_config(model: Path) -> dict[str, Any]:
    """Return the configuration of a model's text part."""
    own = read(model)
    return own.get("text_config", own)  # type: ignore[no-any-return]


def fields(model: Path, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a head for a model's folder."""
    own = text_config(model)
    vocab = own["vocab_size"]
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": vocab,
        "draft_vocab_size": vocab // 2,
        "hidden_size": own["hidden_size"],
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": 16,
        "intermediate_size": INNER,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": [0, 1, own["num_hidden_layers"]],
        "torch_dtype": "float32",
        **changes,
    }


def random_weights(config: dict[str, Any], seed: int, *, embedding: bool = False) -> Weights:
    """Return weights by their published names, `d2t` and `t2d` included."""
    draw = torch.Generator().manual_seed(seed)
    width, size = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    inner, vocab, drafted = (
        config[name] for name in ("intermediate_size", "vocab_size", "draft_vocab_size")
    )
    target = config.get("target_hidden_size") or width
    matrices = {
        "fc": (width, 3 * target),
        "midlayer.self_attn.q_proj": (queries, 2 * width),
        "midlayer.self_attn.k_proj": (keys, 2 * width),
        "midlayer.self_attn.v_proj": (keys, 2 * width),
        "midlayer.self_attn.o_proj": (width, queries),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
        "lm_head": (drafted, width),
        **({"embed_tokens": (vocab, width)} if embedding else {}),
    }
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    found = {
        f"{name}.weight": 2 * torch.randn(shape, generator=draw) / shape[1] ** 0.5
        for name, shape in matrices.items()
    }
    for name in (*(f"midlayer.{norm}" for norm in norms), "norm"):
        found[f"{name}.weight"] = 1 + 0.2 * torch.randn(width, generator=draw)
    tokens = torch.randperm(vocab, generator=draw)[:drafted].sort().values
    found["d2t"] = tokens - torch.arange(drafted)
    found["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, tokens, True)
    return found


def write(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    """Write a head's folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(
        {name: each.contiguous() for name, each in weights.items()}, folder / "model.safetensors"
    )
    return folder


def make(folder: Path, model: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a head for a model's folder, with random weights."""
    config = fields(model, **changes)
    return write(folder, config, random_weights(config, seed))
