"""Tiny checkpoints with a module that predicts further tokens, and that module alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import gguf_families
import tiny

Weights = dict[str, torch.Tensor]
# By variant: layers that are made, and the module's layer, the last one with attention.
MADE = {"deepseek-v3": 4, "glm4-moe": 4, "qwen3-next": 6, "qwen3.5": 6}
_LEFT = {"deepseek-v3": 3, "glm4-moe": 3, "qwen3-next": 4, "qwen3.5": 4}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
# names of the parts around the layer: of DeepSeek and GLM, of Qwen, and here
_PARTS = (
    ("enorm", "mtp.pre_fc_norm_embedding", "embed_norm"),
    ("hnorm", "mtp.pre_fc_norm_hidden", "hidden_norm"),
    ("eh_proj", "mtp.fc", "join"),
    ("shared_head.norm", "mtp.norm", "final_norm"),
)


def make(folder: Path, variant: str, **own: Any) -> Path:
    """Write a checkpoint with a module, and in `alone` one whose only layer is the module's.

    `alone` has the parts around the layer in `parts.safetensors`.
    """
    made, left = MADE[variant], _LEFT[variant]
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}  # as GGUF can say
    changes = plain if variant == "deepseek-v3" else {}
    tiny.make(folder, variant, tokenizer=True, num_hidden_layers=made, **changes, **own)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "model.safetensors")
    width, qwen = config["hidden_size"], variant.startswith("qwen")
    draw = torch.Generator().manual_seed(9)
    parts = {
        name: (0.0 if qwen else 1.0) + 0.3 * torch.randn(width, generator=draw)
        for *_, name in _PARTS
    }
    parts["join"] = torch.randn((width, 2 * width), generator=draw) / width**0.5
    whole: Weights = {}
    alone: Weights = {"model.norm.weight": parts["final_norm"]}
    for name, each in weights.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            whole[name] = each
            alone.setdefault(name, each)
        elif int(match[1]) < left:
            whole[name] = each
        elif int(match[1]) == made - 1:
            alone[f"model.layers.0.{match[2]}"] = each
            whole[f"mtp.layers.0.{match[2]}" if qwen else f"model.layers.{left}.{match[2]}"] = each
    for plain, of_qwen, name in _PARTS:
        stem = of_qwen if qwen else f"model.layers.{left}.{plain}"
        whole[f"{stem}.weight"] = parts[name]
    if not qwen:  # copies, as published
        whole[f"model.layers.{left}.embed_tokens.weight"] = whole["model.embed_tokens.weight"] + 0
        whole[f"model.layers.{left}.shared_head.head.weight"] = whole["lm_head.weight"] + 0
    _write(folder, _shortened(config, left), whole)
    (folder / "alone").mkdir()
    _write(folder / "alone", _shortened(config, 1), alone)
    save_file(parts, folder / "alone" / "parts.safetensors")
    return folder


def as_gguf(folder: Path, path: Path, kind: str = "F32") -> Path:
    """Write a checkpoint with a module as a GGUF file."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    left = config["num_hidden_layers"]
    names = {of: f"blk.{left}.nextn.{of.replace('.', '_')}" for of, *_ in _PARTS}
    called = {of_qwen: names[of] for of, of_qwen, _ in _PARTS}
    called |= {f"model.layers.{left}.{of}": name for of, name in names.items()}
    found = {}
    for name, each in load_file(folder / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem.endswith((f"{left}.embed_tokens", "shared_head.head")):
            continue
        renamed = called.get(stem, stem.replace("mtp.layers.0.", f"model.layers.{left}."))
        found[renamed + name[len(stem) :]] = each
    plain = path.with_suffix(".folder")
    plain.mkdir()
    _write(plain, config, found)
    keys = {"nextn_predict_layers": 1, "block_count": left + 1}
    return gguf_families.write(plain, path, kind, keys=keys)


def _shortened(config: dict[str, Any], layers: int) -> dict[str, Any]:
    found = {**config, "num_hidden_layers": layers}
    for name in ("layer_types", "mlp_layer_types"):
        if isinstance(config.get(name), list):
            found[name] = config[name][-1:] if layers == 1 else config[name][:layers]
    if layers == 1:
        found |= {"first_k_dense_replace": 0} if "first_k_dense_replace" in config else {}
        found |= {"mlp_only_layers": []} if "mlp_only_layers" in config else {}
    return found


def _write(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    stored = {name: each.contiguous() for name, each in weights.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
