"""The decoder in PyTorch: for gradients, for calibration layer by layer, and as a reference.

It computes on the packed weights of `DecoderWeights`, unpacked a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from suffice.decoder.blocks import Attention, DenseMLP, ExpertMLP, LatentAttention
from suffice.decoder.config import DecoderConfig
from suffice.decoder.states import Convolution, Recurrence, StateBlock
from suffice.decoder.weights import DecoderWeights, Watch
from suffice.errors import InputError
from suffice.quant import PackedLinear
from suffice.quantize.torch_latent import LatentHeads
from suffice.quantize.torch_layers import (
    ACTIVATIONS,
    attend,
    capped,
    dense,
    gated,
    gather_rows,
    layer_norm,
    linear,
    rms_norm,
    rotate,
    rotate_neighbours,
    route,
    rows_of,
    xielu,
)
from suffice.quantize.torch_states import MADE_OF, TorchState, recurrence, short_convolution

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache

HOST = torch.device("cpu")

Logits = Literal["last", "all", "none"]
Positions = slice | torch.Tensor  # of tokens, which a tensor [T] may have in any order


class TorchDecoder(DecoderWeights):
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
        super().__init__(config, weights)
        self.dtype = dtype
        self.device = device
        self._tables: list[tuple[torch.Tensor, torch.Tensor]] = []
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

    def _layer(
        self,
        index: int,
        x: torch.Tensor,
        table: tuple[torch.Tensor, torch.Tensor] | None,
        cache: KVCache | None,
        watch: Watch | None,
    ) -> torch.Tensor:
        base = x
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
                y = self._experts(index, block, given)
            else:
                y = self._mlp(index, block, given)
            scale = self.config.residual_scale * block.output_scale
            y = self._placed(norms.get("after"), y) * scale
            x = self._placed(norms.get("whole"), x + y)
        return x

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
        q, k, v = self._projected(index, table, x)
        among = self._cached(index)
        held = self._held(among, cache, k, v)
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
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the queries [H, T, D] and the keys and values [G, T, D] of x [T, M]."""
        config, at, own = self.config, f"layers.{index}.", self.config.layers[index]
        q, k, v = (
            self._linear(at + name, x).view(len(x), -1, config.head_size).transpose(0, 1)
            for name in "qkv"
        )
        if config.qk_norm and own.norms and not config.late_qk_norm:
            q, k = self._head_norm(at + "q_norm", q), self._head_norm(at + "k_norm", k)
        if table is not None:
            q, k = rotate(q, *table), rotate(k, *table)
        if config.qk_norm and own.norms and config.late_qk_norm:
            q, k = self._head_norm(at + "q_norm", q), self._head_norm(at + "k_norm", k)
        if self._scales is not None and own.grows:
            q = q * self._scales[:, None]
        return q, k, v

    def _head_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Normalize each of the heads [H, T, D], or all of them together."""
        weight, eps = self._tensor(name), self.config.norm_eps
        if not self.config.whole_qk_norm:
            return rms_norm(x, weight, eps)
        heads = x.transpose(0, 1)
        return rms_norm(heads.flatten(1), weight, eps).view(heads.shape).transpose(0, 1)

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

    def _mlp(self, index: int, block: DenseMLP, x: torch.Tensor) -> torch.Tensor:
        at = f"layers.{index}."
        up = self._linear(at + "up", x)
        if block.gated:
            gate = block.gate_scale * self._linear(at + "gate", x)
            inner = gated(block.activation, gate, up)
        elif block.vectors:
            inner = xielu(up, *self.curve(index).tolist())
        else:
            inner = ACTIVATIONS[block.activation](up)
        return self._linear(at + "down", inner)

    def _experts(self, index: int, block: ExpertMLP, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the outputs of experts, in their order, and of the shared one."""
        experts, at = block.experts, f"layers.{index}."
        weights = self._routes(index, block, x)
        read = self._linear(at + "narrow", x) if experts.narrow else x
        self._note_visits(read, weights)
        y = torch.zeros_like(read)
        for expert in range(experts.count):
            rows = weights[:, expert].nonzero()[:, 0]
            if not len(rows):
                continue
            own = weights[rows, expert, None]
            given = own * read[rows] if experts.before else read[rows]
            inner = self.inner_of(index, block, expert, given)
            found = self.expert(at + "expert_down", expert, block.entries, inner)
            y = y.index_add(0, rows, found if experts.before else own * found)
        y = self._linear(at + "widen", y) if experts.narrow else y
        if not experts.shared:
            return y
        inner = self._inner(block, lambda part: self._linear(f"{at}shared_{part}", x))
        shared = self._linear(at + "shared_down", inner)
        if experts.gated_share:
            shared = self._linear(at + "shared_router", x).sigmoid() * shared
        return y + shared

    def _note_visits(self, rows: torch.Tensor, weights: torch.Tensor) -> None:
        """Take notice of what experts may read [T, K], and of their weights [T, E]."""

    def inner_of(self, index: int, block: ExpertMLP, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Return what an expert has for x before its last matrix."""
        at, rows = f"layers.{index}.expert_", block.experts.inner
        return self._inner(block, lambda part: self.expert(at + part, expert, rows, x))

    def _inner(self, block: ExpertMLP, product: Callable[[str], torch.Tensor]) -> torch.Tensor:
        if block.experts.gated:
            return gated(block.activation, product("gate"), product("up"))
        return ACTIVATIONS[block.activation](product("up"))

    def _routes(self, index: int, block: ExpertMLP, x: torch.Tensor) -> torch.Tensor:
        """Return the weights of all experts for each row of x, 0 for those it does not reach."""
        bias = self._tensor(f"layers.{index}.choice") if block.experts.biased else None
        return route(self._linear(f"layers.{index}.router", x), block.experts, bias)

    def expert(self, name: str, expert: int, rows: int, x: torch.Tensor) -> torch.Tensor:
        """Multiply by an expert's `rows` rows of a stack."""
        return linear(x, rows_of(self.matrix(name), expert * rows, rows), self.dtype)

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

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, eps = self._tensor(name), self.config.norm_eps
        if self.config.norm == "rms":
            return rms_norm(x, weight, eps)
        bias = self._tensor(name + ".bias") if self.config.norm_biases else None
        return layer_norm(x, weight, bias, eps)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.matrix(name), self.dtype)

    def _tensor(self, name: str) -> torch.Tensor:
        weight = self.weights[name]
        assert isinstance(weight, np.ndarray), name
        return self._moved(weight)

    def _moved(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _rope_rows(self, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return tables of at least `rows` rows, kept between calls."""
        if self.config.ropes and (not self._tables or len(self._tables[0][0]) < rows):
            tables = self.rope_tables(1 << (rows - 1).bit_length())
            self._tables = [(self._moved(cos), self._moved(sin)) for cos, sin in tables]
        return self._tables
