"""Tiny assistants of Gemma 4 with random weights, made by transformers itself."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import torch

import tiny

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "tie_word_embeddings": True,
}
# of the model that it drafts for
_SAME = ("vocab_size", "num_key_value_heads", "head_dim", "global_head_dim", "sliding_window")
_SAME += ("attention_k_eq_v", "num_global_key_value_heads", "max_position_embeddings")


def make(folder: Path, model: Path, *, groups: int = 0, kept: int = 3, **changes: Any) -> Path:
    """Write an assistant for a model's folder; with `groups` its head has that many groups of rows.

    `changes` are fields of its layers.
    """
    import transformers

    own = json.loads((model / "config.json").read_text(encoding="utf-8"))
    own = own.get("text_config", own)
    sizes = {name: own[name] for name in _SAME if name in own}
    if own.get("per_layer_config"):
        (layer, *_) = own["per_layer_config"].values()
        sizes["global_head_dim"] = layer["head_dim"]
        if sizes.get("attention_k_eq_v"):
            sizes["num_global_key_value_heads"] = layer["num_key_value_heads"]
    text = transformers.Gemma4TextConfig(**{**SIZES, **sizes, **changes})
    config = transformers.Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=own["hidden_size"],
        use_ordered_embeddings=groups > 0,
        num_centroids=groups or 2048,
        centroid_intermediate_top_k=kept,
    )
    with contextlib.redirect_stderr(io.StringIO()):
        assistant = transformers.Gemma4AssistantForCausalLM(config).float()
        tiny.fill(assistant, 3, centred=False)
        if groups:
            order = torch.randperm(own["vocab_size"], generator=torch.Generator().manual_seed(5))
            assistant.masked_embedding.token_ordering.copy_(order)
        assistant.save_pretrained(folder)
    return folder
