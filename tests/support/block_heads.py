"""Heads of DFlash with random weights, as they are published, and their reference in PyTorch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import heads

BLOCK, MASK, WINDOW = 8, 3, 24
LAYERS = ("full_attention", "sliding_attention")


def fields(model: Path, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a head for a model's folder; it reads all layers but the last."""
    own = heads.fields(model)
    count = heads.text_config(model)["num_hidden_layers"]
    kept = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    kept += ("intermediate_size", "hidden_act", "max_position_embeddings", "rope_theta")
    return {
        **{name: own[name] for name in kept},
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "attention_bias": False,
        "num_hidden_layers": len(LAYERS),
        "layer_types": list(LAYERS),
        "sliding_window": WINDOW,
        "use_sliding_window": True,
        "max_window_layers": len(LAYERS),
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "block_size": BLOCK,
        "num_target_layers": count,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(range(count - 1))},
        "torch_dtype": "float32",
        **changes,
    }


def random_weights(config: dict[str, Any], seed: int) -> heads.Weights:
    """Return weights by their published names."""
    draw = torch.Generator().manual_seed(seed)
    width, size, inner = (config[x] for x in ("hidden_size", "head_dim", "intermediate_size"))
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    read = len(config["dflash_config"]["target_layer_ids"])
    matrices = {"fc": (width, read * width)}
    norms = {"hidden_norm": width, "norm": width}
    for at in range(config["num_hidden_layers"]):
        layer = f"layers.{at}."
        matrices |= {
            layer + "self_attn.q_proj": (queries, width),
            layer + "self_attn.k_proj": (keys, width),
            layer + "self_attn.v_proj": (keys, width),
            layer + "self_attn.o_proj": (width, queries),
            layer + "mlp.gate_proj": (inner, width),
            layer + "mlp.up_proj": (inner, width),
            layer + "mlp.down_proj": (width, inner),
        }
        norms |= dict.fromkeys(
            (layer + "input_layernorm", layer + "post_attention_layernorm"), width
        )
        norms |= dict.fromkeys((layer + "self_attn.q_norm", layer + "self_attn.k_norm"), size)
    found = {
        f"{name}.weight": 2 * torch.randn(shape, generator=draw) / shape[1] ** 0.5
        for name, shape in matrices.items()
    }
    for name, shape in matrices.items() if config["attention_bias"] else ():
        if "self_attn" in name:
            found[f"{name}.bias"] = 0.3 * torch.randn(shape[0], generator=draw)
    for name, count in norms.items():
        found[f"{name}.weight"] = 1 + 0.2 * torch.randn(count, generator=draw)
    return found


def make(folder: Path, model: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a head for a model's folder, with random weights."""
    config = fields(model, **changes)
    dtype = getattr(torch, config["torch_dtype"])
    weights = {name: each.to(dtype) for name, each in random_weights(config, seed).items()}
    return heads.write(folder, config, weights)


class Reference:
    """A head in plain PyTorch, in the type of its weights; `table` [V, W] is the model's head."""

    def __init__(self, config: dict[str, Any], weights: heads.Weights, table: torch.Tensor) -> None:
        self.config, self.weights, self.table = config, weights, table
        size = config["head_dim"]
        powers = torch.arange(0, size, 2, dtype=torch.float64) / size
        self._turns = config["rope_theta"] ** -powers

    def logits(
        self, hidden: torch.Tensor, embedded: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits [A, B, V] of blocks of one text.

        `hidden` [T, H] are the text's, `embedded` [A, B, W] the blocks' embeddings, and block i
        begins at position `starts[i]` and sees the text before it.
        """
        text = self._norm(hidden @ self.weights["fc.weight"].T, "hidden_norm")
        at = torch.arange(len(hidden)), starts[:, None] + torch.arange(embedded.shape[1])
        x = embedded
        for layer in range(self.config["num_hidden_layers"]):
            name = f"layers.{layer}."
            own = self._norm(x, name + "input_layernorm")
            x = x + self._attend(layer, own, text, at)
            own = self._norm(x, name + "post_attention_layernorm")
            gate = functional.silu(self._times(own, name + "mlp.gate_proj"))
            up = self._times(own, name + "mlp.up_proj")
            x = x + self._times(gate * up, name + "mlp.down_proj")
        return self._norm(x, "norm") @ self.table.T

    def after(
        self, hidden: torch.Tensor, embed: torch.Tensor, blocks: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits [A, B - 1, V] of each block's tokens [A, B] after its first one.

        `embed` [V, W] has the tokens' embeddings; see `logits` for the others.
        """
        given = torch.full_like(blocks, MASK)
        given[:, 0] = blocks[:, 0]
        return self.logits(hidden, embed[given], starts)[:, 1:]

    def _attend(
        self, layer: int, x: torch.Tensor, text: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        count, rows = x.shape[:2]
        name = f"layers.{layer}.self_attn."
        both = torch.cat((text.expand(count, *text.shape), x), dim=1)
        places = torch.cat((at[0].expand(count, -1), at[1]), dim=1)
        q = self._rotated(self._heads(x, name + "q_proj", name + "q_norm"), at[1])
        k = self._rotated(self._heads(both, name + "k_proj", name + "k_norm"), places)
        v = self._heads(both, name + "v_proj")
        group = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        seen = self._seen(layer, at, places)
        weights = scores.masked_fill(~seen[:, None], -math.inf).softmax(dim=-1)
        out = (weights @ v).transpose(1, 2).reshape(count, rows, -1)
        return self._times(out, name + "o_proj")

    def _seen(
        self, layer: int, at: tuple[torch.Tensor, torch.Tensor], places: torch.Tensor
    ) -> torch.Tensor:
        """Return which rows of the text, and of a block, each row of it sees, [A, B, T + B]."""
        slides = self.config["layer_types"][layer] == "sliding_attention"
        causal = self.config.get("is_causal")
        own = torch.arange(places.shape[1]) >= len(at[0])
        before = places < at[1][:, :1]  # of the text, what is before the block
        seen = (before | own[None])[:, None].expand(-1, at[1].shape[1], -1)
        ahead = places[:, None] - at[1][..., None]
        if slides if causal is None else causal:
            seen = seen & (ahead <= 0)
        return seen & (ahead.abs() < self.config["sliding_window"]) if slides else seen

    def _rotated(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        turns = places[:, None, :, None] * self._turns
        cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
        one, two = x.chunk(2, dim=-1)
        return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)

    def _heads(self, x: torch.Tensor, name: str, norm: str | None = None) -> torch.Tensor:
        size = self.config["head_dim"]
        found = self._times(x, name)
        found = found.view(*found.shape[:-1], -1, size)
        return (found if norm is None else self._norm(found, norm)).transpose(1, 2)

    def _times(self, x: torch.Tensor, name: str) -> torch.Tensor:
        found = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return found if bias is None else found + bias

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.weights[f"{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, self.config["rms_norm_eps"])
