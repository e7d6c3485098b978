"""A head of EAGLE-3 in PyTorch: for gradients, and as a reference.

Source: Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", sections 3.1 and 3.2, whose letters are used here: g is the fused hidden states
of the model, e an embedding, a what the head makes of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.nn import functional

from suffice.decoder.config import DecoderConfig
from suffice.decoder.rope import rope_table
from suffice.quantize.torch_layers import gated, rms_norm, rotate

_LAYER = "midlayer."


def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a head, by its published name."""
    assert config.drafts is not None, "a head begins with hidden states"
    width, inner = config.width, config.mlp_width
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    layer = {
        "hidden_norm": (width,),
        "input_layernorm": (width,),
        "self_attn.q_proj": (queries, 2 * width),
        "self_attn.k_proj": (keys, 2 * width),
        "self_attn.v_proj": (keys, 2 * width),
        "self_attn.o_proj": (width, queries),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    found = {
        "fc": (width, config.drafts.hidden),
        **{_LAYER + name: shape for name, shape in layer.items()},
        "norm": (width,),
        "lm_head": (config.vocab, width),
    }
    return {f"{name}.weight": shape for name, shape in found.items()}


class TorchHead:
    """The head of `weights`, by their published names; all of them have one type."""

    def __init__(self, config: DecoderConfig, weights: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self.weights = weights

    def drafts(
        self, hidden: torch.Tensor, embedded: torch.Tensor, steps: int
    ) -> Iterator[torch.Tensor]:
        """Yield the logits [T, D] of each of `steps` drafts after every row of a text.

        `hidden` [T, H] are the model's hidden states of tokens 0..T-1, and `embedded`
        [T - 1 + steps, W] the embeddings of tokens 1, 2, ...: draft k of row i is of token
        i + 2 + k, and reads tokens up to i + 1 + k. As in training-time test, the row of draft
        k > 0 begins with what the head made of draft k - 1, and sees the rows of the text up to its
        own, and those of the drafts before it.
        """
        count = len(hidden)
        a = functional.linear(hidden, self._of("fc"))  # g of the paper
        seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step in range(steps):
            e = embedded[step : step + count]
            a, pair = self._layer(a, e, step, seen)
            seen.append(pair)
            normed = rms_norm(a, self._of("norm"), self.config.norm_eps)
            yield functional.linear(normed, self._of("lm_head"))

    def _layer(
        self,
        a: torch.Tensor,
        e: torch.Tensor,
        step: int,
        seen: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Run the decoder layer on rows [T, W]; return what it makes of them, and its keys and
        values [G, T, D]."""
        config, eps = self.config, self.config.norm_eps
        assert config.drafts is not None
        normed = rms_norm(a, self._of(_LAYER + "hidden_norm"), eps)
        stream = normed if config.drafts.normed_stream else a
        pair = torch.cat((rms_norm(e, self._of(_LAYER + "input_layernorm"), eps), normed), dim=-1)
        cos, sin = self._rotations(step, len(a), a)
        q, k, v = (
            self._heads(functional.linear(pair, self._of(f"{_LAYER}self_attn.{name}_proj")))
            for name in "qkv"
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = self._attend(q, [*seen, (k, v)])
        a = stream + functional.linear(mixed, self._of(_LAYER + "self_attn.o_proj"))
        x = rms_norm(a, self._of(_LAYER + "post_attention_layernorm"), eps)
        gate, up = (
            functional.linear(x, self._of(f"{_LAYER}mlp.{name}_proj")) for name in ("gate", "up")
        )
        inner = gated(config.activation, gate, up)
        return a + functional.linear(inner, self._of(_LAYER + "mlp.down_proj")), (k, v)

    def _attend(
        self, q: torch.Tensor, seen: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Return the attention [T, H D] of queries [H, T, D] of rows to those of the text up to
        them, the first of `seen`, and to their own of the drafts after it."""
        group = self.config.heads // self.config.kv_heads
        scale, count = self.config.attention_scale, q.shape[1]
        keys, values = (
            [each[part].repeat_interleave(group, 0) for each in seen] for part in (0, 1)
        )
        later = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1)
        scores = [(q @ keys[0].transpose(1, 2)).masked_fill(later, -torch.inf)]
        scores += [(q * own).sum(-1, keepdim=True) for own in keys[1:]]
        weights = torch.softmax(torch.cat(scores, dim=-1) * scale, dim=-1)
        mixed = weights[..., :count] @ values[0]
        for at, own in enumerate(values[1:]):
            mixed = mixed + weights[..., count + at, None] * own
        return mixed.transpose(0, 1).reshape(count, -1)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1, self.config.head_size).transpose(0, 1)

    def _rotations(
        self, first: int, count: int, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        config = self.config
        sizes = config.rotary_size(0), config.trained_positions
        tables = rope_table(config.ropes[0], *sizes, count, first)
        cos, sin = (torch.from_numpy(table).to(like) for table in tables)
        return cos, sin

    def _of(self, name: str) -> torch.Tensor:
        return self.weights[f"{name}.weight"]
