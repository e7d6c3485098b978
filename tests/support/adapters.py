"""LoRA adapters for tests: folders as PEFT writes them, and models with the change merged in."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

TARGETS = {  # of the modules of variants: all that adapters may change
    "gpt2": ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"),
    "glm": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gptj": ("q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"),
    "falcon-h1": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "minicpm3": (
        *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    ),
    "olmo2": ("q_proj", "k_proj", "v_proj", "up_proj"),
    "neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
}


def modules(model: Path, targets: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the matrices of the modules whose names end with one of the targets."""
    stored = load_file(model / "model.safetensors")
    return {
        name.removesuffix(".weight"): weight
        for name, weight in stored.items()
        if weight.dim() == 2 and any(name.endswith(f".{target}.weight") for target in targets)
    }


def write(
    folder: Path,
    model: Path,
    targets: Sequence[str],
    *,
    rank: int = 4,
    alpha: float = 8,
    seed: int = 0,
    transposed: bool = False,
    **fields: Any,
) -> Path:
    """Write an adapter of random matrices for a model; `fields` are further ones of its config.

    `transposed`: the model stores its matrices [K, N], as GPT-2 does.
    """
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    ranks = fields.get("rank_pattern", {})
    tensors = {}
    for name, weight in modules(model, targets).items():
        rows, columns = reversed(weight.shape) if transposed else weight.shape
        own = next((each for key, each in ranks.items() if name.endswith(key)), rank)
        down = torch.randn((own, columns), generator=generator) / columns**0.5
        up = torch.randn((rows, own), generator=generator) / own**0.5
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "target_modules": list(targets),
        "bias": "none",
        "fan_in_fan_out": transposed,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        **fields,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def changes(adapter: Path) -> dict[str, torch.Tensor]:
    """Return scale B A for each module of an adapter, by PEFT's formula, [N, K] float32."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    low = load_file(adapter / "adapter_model.safetensors")
    found = {}
    for name in [each for each in low if each.endswith("lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        down, up = low[name].double(), low[name.replace("lora_A", "lora_B")].double()
        root = math.sqrt(len(down)) if config["use_rslora"] else len(down)
        patterns = config.get("alpha_pattern", {})
        alpha = next(
            (own for key, own in patterns.items() if module.endswith(key)), config["lora_alpha"]
        )
        found[module] = (alpha / root * (up @ down)).float()
    return found


def merged(folder: Path, model: Path, adapter: Path) -> Path:
    """Write the model with W + scale B A in place of each W."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    stored = load_file(model / "model.safetensors")
    for module, change in changes(adapter).items():
        own = change.T if config["fan_in_fan_out"] else change
        weight = stored[f"{module}.weight"]
        stored[f"{module}.weight"] = (weight.double() + own).float().contiguous()
    shutil.copytree(model, folder)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def prompts(count: int, vocabulary: int, seed: int = 3) -> list[list[int]]:
    """Return prompts of several lengths."""
    generator = np.random.default_rng(seed)
    lengths = (5, 19, 70, 33, 2, 48, 11, 27)
    return [generator.integers(3, vocabulary, lengths[i % 8]).tolist() for i in range(count)]
