"""Heads of DSpark with random weights, as they are published, and their reference in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import block_heads
import heads
from block_heads import BLOCK, MASK

DRAFTS, RANK = BLOCK - 1, 16


def fields(model: Path, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a head for a model's folder; it reads all layers but the last."""
    own = block_heads.fields(model)
    read = own.pop("dflash_config")["target_layer_ids"]
    return {
        **own,
        "architectures": ["Qwen3DSparkModel"],
        "layer_types": ["full_attention"] * own["num_hidden_layers"],
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "block_size": DRAFTS,
        "mask_token_id": MASK,
        "target_layer_ids": read,
        "num_anchors": 512,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        **changes,
    }


def random_weights(config: dict[str, Any], seed: int, *, tables: bool = False) -> heads.Weights:
    """Return weights by their published names; `tables`: an embedding and a head of its own."""
    draw = torch.Generator().manual_seed(seed + 1000)
    own = {"dflash_config": {"target_layer_ids": config["target_layer_ids"]}, **config}
    vocab, width, rank = (config[x] for x in ("vocab_size", "hidden_size", "markov_rank"))
    shapes = {
        "markov_head.markov_w1": (vocab, rank),
        "markov_head.markov_w2": (vocab, rank),
        "confidence_head.proj": (1, width + rank),
        **({"embed_tokens": (vocab, width), "lm_head": (vocab, width)} if tables else {}),
    }
    more = {
        f"{name}.weight": 2 * torch.randn(shape, generator=draw) / shape[1] ** 0.5
        for name, shape in shapes.items()
        if rank or "markov" not in name
    }
    return {
        **block_heads.random_weights(own, seed),
        **more,
        "confidence_head.proj.bias": torch.zeros(1),
    }


def make(folder: Path, model: Path, *, seed: int = 0, tables: bool = False, **changes: Any) -> Path:
    """Write a head for a model's folder, with random weights; `tables`: see `random_weights`."""
    config = fields(model, **changes)
    dtype = getattr(torch, config["torch_dtype"])
    weights = random_weights(config, seed, tables=tables)
    return heads.write(folder, config, {name: each.to(dtype) for name, each in weights.items()})


class Reference(block_heads.Reference):
    """A head in plain PyTorch; a row's logits are of the token after its place."""

    def after(
        self, hidden: torch.Tensor, embed: torch.Tensor, blocks: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits [A, B - 1, V] of each block's tokens [A, B] after its first one.

        Those of a token depend on the one before it.
        """
        given = torch.full_like(blocks[:, 1:], MASK)
        given[:, 0] = blocks[:, 0]
        return self.logits(hidden, embed[given], starts) + self._added(blocks[:, :-1])

    def drafts(
        self, hidden: torch.Tensor, embed: torch.Tensor, last: int, count: int, kept: int
    ) -> tuple[list[int], torch.Tensor]:
        """Return greedy drafts after a text, and the rows' logits [count, V] as the block has them.

        `embed` [V, W] has the embeddings, and a draft is one of its row's `kept` most likely.
        """
        given = torch.tensor([last, *[MASK] * (count - 1)])
        rows = self.logits(hidden, embed[given][None], torch.tensor([len(hidden)]))[0]
        found = [last]
        for row in rows:
            values, tokens = row.topk(kept)
            added = self._added(torch.tensor(found[-1]))[tokens] if kept else 0
            found.append(int(tokens[(values + added).argmax()]))
        return found[1:], rows

    def _rotated(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Rotate queries or keys [A, H, T, D]; LFM2.5's have the two entries adjacent."""
        if self.config.get("rope_is_neox_style", True):
            return super()._rotated(x, places)
        halves = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1)
        one, two = super()._rotated(halves, places).chunk(2, dim=-1)
        return torch.stack((one, two), dim=-1).flatten(-2)

    def _added(self, before: torch.Tensor) -> torch.Tensor:
        """Return what is added to the logits of all tokens after the tokens `before`."""
        w1, w2 = (self.weights[f"markov_head.markov_w{part}.weight"] for part in (1, 2))
        return w1[before] @ w2.T
