"""The decoder in PyTorch: for gradients, for calibration layer by layer, and as a reference.

It computes on the packed weights of `DecoderWeights`, unpacked a block at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from suffice.decoder.blocks import (
    Attention,
    ExpertMLP,
    LatentAttention,
    LayerEmbedding,
)
from suffice.decoder.config import DecoderConfig
from suffice.decoder.states import Convolution, Recurrence, StateBlock
from suffice.decoder.weights import Watch
from suffice.errors import InputError
from suffice.quant import PackedLinear
from suffice.quantize.torch_latent import LatentHeads
from suffice.quantize.torch_layers import (
    ACTIVATIONS,
    attend,
    capped,
    dense,
    gather_rows,
    rms_norm,
    rotate,
    rotate_neighbours,
)
from suffice.quantize.torch_mlps import TorchMLPs
from suffice.quantize.torch_states import MADE_OF, TorchState, recurrence, short_convolution
from suffice.quantize.torch_weights import HOST

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache

Logits = Literal["last", "all", "none"]
Positions = slice | torch.Tensor  # of tokens, which a tensor [T] may have in any order


class TorchDecoder(TorchMLPs):
    """Fills a cache in chunks by PyTorch.

    Matmuls run in `dtype`; activations, norms and attention in float32. All of it is on `device`,
    to which dense weights are moved once; the cache is on the host.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, PackedLinear | np.ndarray],
        dtype: torch.dtype = torch.float32,
        device: torch.device = HOST,
    ) -> None:
        super().__init__(config, weights, dtype, device)
        # of the tokens that run now: each layer's input, and what layers that others read stored
        self._own_inputs: torch.Tensor | None = None
        self._stored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._read_again = {layer.shares for layer in config.layers}
        self._scales: torch.Tensor | None = None  # of the queries [T] that run now
        self._kept_states: WeakKeyDictionary[KVCache, dict[int, TorchState]] = WeakKeyDictionary()

    @torch.no_grad()
    def forward(
        self,
        tokens: torch.Tensor,
        cache: KVCache,
        *,
        logits: Logits = "last",
        watch: Watch | None = None,
    ) -> torch.Tensor | None:
        """Append the rows of `tokens` [T] to `cache` and return float32 logits.

        Their shape is [V] after the last token, [T, V] after each token, or None. `watch` receives
        each layer's index and queries [H, T, D], rotated; the cache has their keys.

        Raises:
            several beyond the trained positions of a dynamic rotation (see `rope.check_call`).
            OutOfMemory: The cache cannot grow.
        """
        self._check(tokens, cache.length)
        cache.reserve(len(tokens))
        rows = cache.length + len(tokens)
        x = self._through(tokens, slice(cache.length, rows), rows, cache, watch)
        cache.advance(len(tokens))
        if logits == "none":
            return None
        return self._logits(x[-1:])[0] if logits == "last" else self._logits(x)

    def _check(self, tokens: torch.Tensor, first: int) -> None:
        config = self.config
        if not len(tokens):
            raise InputError("there is no token to decode; at least 1 is needed")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= config.vocab:
            wrong = low if low < 0 else high
            raise InputError(
                f"token {wrong} is outside the vocabulary; allowed: 0..{config.vocab - 1}"
            )
        if config.position_rows and first + len(tokens) > config.trained_positions:
            raise InputError(
                f"{first + len(tokens)} tokens are more than the model has positions; "
                f"allowed: {config.trained_positions}"
            )

    def _through(
        self,
        tokens: torch.Tensor,
        at: Positions,
        rows: int,
        cache: KVCache | None = None,
        watch: Watch | None = None,
    ) -> torch.Tensor:
        """Return the hidden states [T, M] after the last layer of tokens `at` positions < rows."""
        x = self._embed(tokens, at)
        self._own_inputs = self._layer_embeddings(tokens, x)
        self._stored = {}
        tables = [(cos[at], sin[at]) for cos, sin in self._rope_rows(rows)]
        if self.config.query_growth is not None:
            self._scales = self._moved(self.query_scales(rows))[at]
        for index, layer in enumerate(self.config.layers):
            table = None if layer.rope is None else tables[layer.rope]
            x = self._layer(index, x, table, cache, watch)
        return x

    def _embed(self, tokens: torch.Tensor, at: Positions) -> torch.Tensor:
        config = self.config
        x = gather_rows(self.matrix("embed"), tokens).to(self.device) * self.embed_scale
        if config.projected:
            x = self._linear("project_in", x)
        if config.position_rows:
            x = x + self._tensor("positions")[config.position_offset :][at]
        return self._norm("embed_norm", x) if config.embed_norm else x

    def _layer_embeddings(self, tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """Return each token's input of each layer [T, L, E], of the embeddings x [T, M]."""
        size = self.config.layer_embed_size
        if not size:
            return None
        projected = self._linear("layer_embed_project", x) * self.config.width**-0.5
        rows = gather_rows(self.matrix("layer_embed"), tokens).to(self.device)
        shape = len(tokens), -1, size
        norm = self._tensor("layer_embed_norm")
        projected = rms_norm(projected.view(shape), norm, self.config.norm_eps)
        return (projected + rows.view(shape) * self.layer_embed_scale) * 2**-0.5

    def _layer(
        self,
        index: int,
        x: torch.Tensor,
        table: tuple[torch.Tensor, torch.Tensor] | None,
        cache: KVCache | None,
        watch: Watch | None,
    ) -> torch.Tensor:
        base, before = x, torch.zeros(0)
        for place, block in enumerate(self.config.blocks(index)):
            base = base if self.config.is_parallel(index, place) else x
            own = self.config.norms(block, index)
            norms = {place: f"layers.{index}.{name}" for place, name in own.items()}
            given = self._placed(norms.get("before"), base)
            if isinstance(block, Attention):
                y = self._attention(index, table, cache, watch, given)
            elif isinstance(block, Convolution | Recurrence):
                y = self._with_state(index, block, cache, given)
            elif isinstance(block, LatentAttention):
                y = self._latent_attention(index, block, table, cache, watch, given)
            elif isinstance(block, ExpertMLP):
                y = self._experts(index, block, given, x)
            elif isinstance(block, LayerEmbedding):
                y = self._layer_embedding(index, block, given)
            else:
                y = self._mlp(index, block, given)
            y = self._placed(norms.get("after"), y)
            if self.config.held(block, index):
                before = y
                continue
            if "joined" in norms:
                y = self._norm(norms["joined"], before + y)
            scale = self.config.residual_scale * block.output_scale
            x = self._placed(norms.get("whole"), x + y * scale)
        return x * self.layer_scale(index) if self.config.layer_scales else x

    def _layer_embedding(self, index: int, block: LayerEmbedding, x: torch.Tensor) -> torch.Tensor:
        assert self._own_inputs is not None, "the model has embeddings of layers"
        at = f"layers.{index}."
        inner = ACTIVATIONS[block.activation](self._linear(at + "layer_gate", x))
        return self._linear(at + "layer_out", inner * self._own_inputs[:, block.place])

    def _placed(self, norm: str | None, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [T, M] where a block has a norm."""
        return x if norm is None else self._norm(norm, x)

    def _attention(
        self,
        index: int,
        table: tuple[torch.Tensor, torch.Tensor] | None,
        cache: KVCache | None,
        watch: Watch | None,
        x: torch.Tensor,
    ) -> torch.Tensor:
        q, *rows = self._projected(index, table, x)
        among = self._cached(index)
        owner = self.config.layers[index].shares
        held = self._stored[owner] if owner is not None else self._held(among, cache, *rows)
        if index in self._read_again:
            self._stored[index] = held
        if watch is not None:
            watch(among, q.detach().cpu().numpy())
        mixed = self._mixed(index, q, *held).transpose(0, 1).reshape(len(x), -1)
        if self.config.output_gate:
            mixed = mixed * torch.sigmoid(self._linear(f"layers.{index}.attn_gate", x))
        return self._linear(f"layers.{index}.o", mixed)

    def _cached(self, index: int) -> int:
        """Return a layer's index among those of a cache."""
        return sum(layer.attends for layer in self.config.layers[:index])

    def _with_state(
        self, index: int, block: StateBlock, cache: KVCache | None, x: torch.Tensor
    ) -> torch.Tensor:
        at = f"layers.{index}."
        given: dict[str, torch.Tensor] = {}
        for name in block.matrices:
            if name != "mix_out":
                given[name] = self._linear(at + name, given.get(MADE_OF.get(name, ""), x))
        by = {name: self._tensor(at + name) for name in block.vectors}
        held = {} if cache is None else self._kept_states.setdefault(cache, {})
        state = held.setdefault(index, TorchState.empty(block, x))
        if isinstance(block, Convolution):
            mixed = short_convolution(block, given["mixed"], by, state)
        else:
            mixed = recurrence(block, given, by, state)
        return self._linear(at + "mix_out", mixed)

    def _held(
        self, index: int, cache: KVCache | None, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values [G, T, D] to a layer; return all that it holds, [G, S, D].

        Without a cache these are the same.
        """
        if cache is None:
            return k, v
        cache.append(index, k.cpu().numpy(), v.cpu().numpy())
        rows = cache.held(index) + k.shape[1]
        return self._moved(cache.keys(index, rows)), self._moved(cache.values(index, rows))

    def _projected(
        self, index: int, table: tuple[torch.Tensor, torch.Tensor] | None, x: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return the queries [H, T, D] and the keys and values [G, T, D] of x [T, M].

        The latter are missing where a layer reads another's.
        """
        config, at, own = self.config, f"layers.{index}.", self.config.layers[index]
        size = own.head_size or config.head_size
        matrices = "q" if own.shares is not None else "qk" if own.keys_as_values else "qkv"
        found = [
            self._linear(at + name, x).view(len(x), -1, size).transpose(0, 1) for name in matrices
        ]
        values = found[-1:] if own.shares is None else []
        if config.value_norm:
            values = [rms_norm(v, torch.ones(size), config.norm_eps) for v in values]
        turned = found[: 1 if own.shares is not None else 2]
        names = [at + "q_norm", at + "k_norm"][: len(turned)]
        normed = config.qk_norm and own.norms
        if normed and not config.late_qk_norm:
            turned = list(map(self._head_norm, names, turned))
        if table is not None:
            turned = [rotate(each, *table) for each in turned]
        if normed and config.late_qk_norm:
            turned = list(map(self._head_norm, names, turned))
        if self._scales is not None and own.grows:
            turned[0] = turned[0] * self._scales[:, None]
        return [*turned, *values]

    def _mixed(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return a layer's attention of queries [H, T, D] to keys and values [G, S, D]."""
        config, spare = self.config, self._spare(index)
        window = config.layers[index].window
        return attend(q, k, v, config.attention_scale, window, config.score_cap, spare)

    def _spare(self, index: int) -> torch.Tensor | None:
        """Return the logits [H] of a layer that take part in its softmax without a value."""
        return self._tensor(f"layers.{index}.spare") if self.config.spare_logits else None

    def _latent_attention(
        self,
        index: int,
        block: LatentAttention,
        table: tuple[torch.Tensor, torch.Tensor] | None,
        cache: KVCache | None,
        watch: Watch | None,
        x: torch.Tensor,
    ) -> torch.Tensor:
        at, own, eps = f"layers.{index}.", block.latent, block.latent.norm_eps
        low = x
        if own.low:
            low = rms_norm(self._linear(at + "q_low", x), self._tensor(at + "q_norm"), eps)
        q = self._linear(at + "q", low).view(len(x), block.heads, own.query).transpose(0, 1)
        plain, rotated = torch.split(q, [own.plain, own.rotated], dim=-1)
        turn = rotate_neighbours if own.adjacent else rotate
        if table is not None:
            q = torch.cat((plain, turn(rotated, *table)), dim=-1)
        if self._scales is not None:
            q = q * self._scales[:, None]
        first, last = torch.split(self._linear(at + "kv", x), [own.rank, own.rotated], dim=-1)
        first = rms_norm(first, self._tensor(at + "kv_norm"), eps)
        if table is not None:
            last = turn(last[None], *table)[0]
        rows, among = torch.cat((first, last), dim=-1), self._cached(index)
        if cache is not None:
            cache.append(among, rows[None].cpu().numpy(), None)
            rows = self._moved(cache.keys(among, cache.held(among) + len(x))[0])
        heads = LatentHeads(
            own, self._heads(at + "key_up", block), self._heads(at + "value_up", block)
        )
        if watch is not None:
            watch(among, heads.absorbed(q).detach().cpu().numpy())
        mixed = self._mixed(index, q, heads.keys(rows), heads.values(rows))
        return self._linear(at + "o", mixed.transpose(0, 1).reshape(len(x), -1))

    def _heads(self, name: str, block: LatentAttention) -> torch.Tensor:
        """Return a stack of a matrix for each head, dense: [H, N, K]."""
        weight = self.matrix(name)
        return dense(weight).view(block.heads, -1, weight.columns).to(self.device)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        logits = self._linear(self._head, self._last(x)) * self.config.logit_scale
        return capped(logits, self.config.logit_cap)

    @property
    def _head(self) -> str:
        return "embed" if self.config.tied else "head"

    def _last(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's input for the hidden states [T, M] after the last layer."""
        if self.config.final_norm:
            x = self._norm("final_norm", x)
        return self._linear("project_out", x) if self.config.projected else x
