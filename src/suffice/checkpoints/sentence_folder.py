"""How a model embeds, as the files of sentence-transformers in its folder say.

modules.json                         the modules in their order, each with its folder
config_sentence_transformers.json    prompts by name
1_Pooling/config.json                how states are pooled
2_Dense/config.json, and its weights a matrix after that
1_LogitScore/config.json             the tokens of a model that ranks by yes and no
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from suffice.checkpoints.formats.hf_folder import read_json, read_list
from suffice.checkpoints.stored_tensors import StoredTensors
from suffice.decoder.pooling import ACTIVATIONS, LAST, MODES, Dense
from suffice.errors import InputError, brief

_MODULES, _SETTINGS = "modules.json", "config_sentence_transformers.json"
# Older names of the modes, each a field of its own.
_OLD = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": LAST,
}


def read_modules(folder: Path, width: int) -> dict[str, Any]:
    """Return the fields of `Pooling` that a folder's files give, {} if they say nothing.

    `width` is that of the model's states.

    Raises:
        InputError: A damaged file, or a module or a value that is not supported.
    """
    path = folder / _MODULES
    if not path.is_file():
        return {}
    found: dict[str, Any] = {"size": width, "normalize": False, "declared": True, "dense": ()}
    for module in read_list(path):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        if kind not in _READERS:
            raise InputError(
                f"{path}: the module {brief(module)} is not supported; "
                f"supported: {', '.join(_READERS)}"
            )
        place = str(module.get("path", ""))
        if {"/", "\\"} & set(place) or place == "..":
            raise InputError(f"{path}: the path {brief(place)} must be a folder next to it")
        found |= _READERS[kind](folder / place, found)
    if "yes_no" in found:
        found["declared"] = False
    elif "mode" not in found:
        raise InputError(f"{path} has no module Pooling: nothing says how the model embeds")
    return found | _prompts(folder)


def _pooling(folder: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    fields = read_json(folder / "config.json")
    mode: Any = fields.get("pooling_mode")
    if mode is None:
        asked = [name for field, name in _OLD.items() if fields.get(field)]
        mode = asked[0] if len(asked) == 1 else asked
    if mode not in MODES:
        raise InputError(
            f"{folder / 'config.json'}: the pooling {brief(mode)} is not supported; "
            f"supported: one of {', '.join(MODES)}"
        )
    if fields.get("include_prompt", True) is not True:
        raise InputError(
            f"{folder / 'config.json'}: 'include_prompt' = {brief(fields['include_prompt'])} is "
            "not supported; supported: true"
        )
    return {"mode": mode}


def _dense(folder: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    fields = read_json(folder / "config.json")
    activation = str(fields.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise InputError(
            f"{folder / 'config.json'}: 'activation_function' = {brief(activation)} is not "
            f"supported; supported: {', '.join(ACTIVATIONS)}"
        )
    file = StoredTensors(folder / "model.safetensors")
    tensors = {name: file.load(name).astype(np.float32) for name in file.names}
    weight, bias = tensors.pop("linear.weight", np.zeros(0)), tensors.pop("linear.bias", None)
    fits = weight.ndim == 2 and weight.shape[1] == found["size"]
    if not fits or tensors or (bias is not None and bias.shape != weight.shape[:1]):
        raise InputError(
            f"{file.path}: must have 'linear.weight' of {found['size']} columns, and at most "
            "'linear.bias'"
        )
    own = Dense(weight.astype(np.float32), bias, activation)
    return {"dense": (*found["dense"], own), "size": len(weight)}


def _logit_score(folder: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    fields = read_json(folder / "config.json")
    tokens = tuple(fields.get(name) for name in ("true_token_id", "false_token_id"))
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise InputError(
            f"{folder / 'config.json'}: 'true_token_id' and 'false_token_id' = {brief(tokens)} "
            "must be two token ids"
        )
    return {"yes_no": tokens}


_READERS: Mapping[str, Callable[[Path, Mapping[str, Any]], dict[str, Any]]] = {
    "Transformer": lambda folder, found: {},
    "Pooling": _pooling,
    "Dense": _dense,
    "Normalize": lambda folder, found: {"normalize": True},
    "LogitScore": _logit_score,
}


def _prompts(folder: Path) -> dict[str, Any]:
    """Return the texts that may stand before a text, and the name of the usual one."""
    path = folder / _SETTINGS
    if not path.is_file():
        return {}
    fields = read_json(path)
    prompts, usual = fields.get("prompts") or {}, fields.get("default_prompt_name")
    texts = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not texts or not (usual is None or (isinstance(usual, str) and usual in prompts)):
        raise InputError(
            f"{path}: 'prompts' must be texts by name, and 'default_prompt_name' one of the names"
        )
    return {"prompts": prompts, "default_prompt": usual}
