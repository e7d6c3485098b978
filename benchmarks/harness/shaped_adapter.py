"""Writes LoRA adapters of random matrices, as PEFT does, for a model of Llama's family."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from suffice.checkpoints.matching import module_names
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.families.llama import WEIGHTS
from suffice.decoder.names import shapes

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def write(folder: Path, model: Path, rank: int, seed: int) -> Path:
    """Write an adapter that changes all matrices of a model's layers; return its folder."""
    config = open_checkpoint(model).config
    modules = module_names(config, WEIGHTS, MATRICES)
    assert modules is not None
    random, sizes, tensors = np.random.default_rng(seed), shapes(config), {}
    for name, module in modules.items():
        rows, columns = sizes[name]
        down = random.standard_normal((rank, columns), np.float32) * np.float32(columns**-0.5)
        up = random.standard_normal((rows, rank), np.float32) * np.float32(0.01)
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = sorted({module.rpartition(".")[2] for module in modules.values()})
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
