"""suffice's attention in vLLM, as a plug-in: `vllm serve MODEL --attention-backend CUSTOM`.

The technique of decode steps is that of `--additional-config '{"suffice_attention":
"art:change=0.01"}'`, "exact" without one: those that `decode_attention` has. Kernels read vLLM's
own cache by its block tables, in any of its layouts. Prompts, and requests with several tokens in a
step, run by PyTorch's attention over their rows, request after request.

vLLM finds the plug-in by itself where suffice is installed (entry point `vllm.general_plugins`).
Written for vLLM 0.32.

Refused by name: scores that are capped or biased, sinks, attention that is not causal, and caches
in another type than the model's. vLLM runs this attention outside of its CUDA graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from suffice.backends.triton.attend import SIZES, TYPES
from suffice.backends.triton.operator import decode_attention, rule_named
from suffice.errors import InputError

OPTION = "suffice_attention"  # of vLLM's additional configuration


def register() -> None:
    """Name the backend in this module CUSTOM; vLLM calls this when it starts."""
    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.{SufficeBackend.__name__}")


class SufficeBackend(AttentionBackend):  # type: ignore[misc]
    """What vLLM asks before it takes a backend."""

    supported_dtypes: ClassVar[Any] = [*TYPES]
    supported_kv_cache_dtypes: ClassVar[Any] = ["auto"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        """Return the name that it is registered by."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[SufficeAttention]:
        """Return the class of a layer's attention."""
        return SufficeAttention

    @staticmethod
    def get_builder_cls() -> type[StepBuilder]:
        """Return the class that makes what the layers of a step share."""
        return StepBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Return the rows that a page may have: any number."""
        return [MultipleOf(1)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Whether kernels have heads of this size."""
        return head_size in SIZES

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Yes: a token sees rows from a first one on."""
        return True


@dataclass(frozen=True)
class Prompt:
    """Tokens [begin, end) of a step, the last of the first `length` rows of request `owner`."""

    owner: int
    begin: int
    end: int
    length: int


@dataclass(frozen=True)
class Step:
    """What the layers of a step share.

    The first tokens are one of each of some requests, `owner` int32 [N], which see `length` int32
    [N] rows, at most `most`. Then come `prompts`. `table` int32 [B, P]: each request's pages.
    """

    owner: torch.Tensor
    length: torch.Tensor
    most: int
    prompts: list[Prompt]
    table: torch.Tensor


class StepBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Makes a `Step` of vLLM's batch."""

    reorder_batch_threshold = 1  # requests with one token come first

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Step:
        """Return the step of a batch.

        Raises:
            InputError: The batch's attention is not causal.
        """
        batch = common_attn_metadata
        if batch.causal is not True:
            raise InputError("attention that is not causal: suffice's backend has none")
        ones, more, tokens, _ = split_decodes_and_prefills(batch)
        prompts = []
        if more:
            starts = batch.query_start_loc_cpu.tolist()
            known = batch.seq_lens_cpu_upper_bound  # of prompts exact, without asking the device
            lengths = (batch.seq_lens if known is None else known).tolist()
            for at in range(ones, ones + more):
                if starts[at + 1] > starts[at]:
                    prompts.append(Prompt(at, starts[at], starts[at + 1], lengths[at]))
        owner = torch.arange(tokens, dtype=torch.int32, device=batch.seq_lens.device)
        length = batch.seq_lens[:tokens].int()
        return Step(owner, length, batch.max_seq_len, prompts, batch.block_table_tensor)


class SufficeAttention(AttentionImpl):  # type: ignore[misc]
    """The attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        """Note what a layer of vLLM says of itself.

        Raises:
            InputError: What suffice's kernels lack, or a technique that they do not have.
        """
        for name, asked in (
            ("alibi_slopes", alibi_slopes),
            ("logits_soft_cap", logits_soft_cap),
            ("attn_type", None if attn_type == AttentionType.DECODER else attn_type),
            ("kv_cache_dtype", None if kv_cache_dtype == "auto" else kv_cache_dtype),
        ):
            if asked:
                raise InputError(f"{name}={asked}: suffice's backend has none: leave it out")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.head_size, self.scale = head_size, float(scale)
        self.kv_cache_dtype, self.window = kv_cache_dtype, sliding_window
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        options = get_current_vllm_config().additional_config
        named = options.get(OPTION, "exact") if isinstance(options, dict) else "exact"
        self.technique = str(named)
        rule_named(self.technique)

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Store keys and values [N, G, D] at slots of the cache [pages, G, rows, 2 D].

        Tokens that fill up a batch have slot -1. They go to page 0, which vLLM leaves unused.
        """
        slots, count = slot_mapping.clamp(min=0), len(slot_mapping)
        place = slots // kv_cache.shape[2], slots % kv_cache.shape[2]
        for held, new in zip(self._halves(kv_cache), (key, value), strict=True):
            held[place] = new[:count]

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Step | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the attention of query [N, H, D] to output and return it.

        Raises:
            InputError: An output in codes is asked for.
        """
        if output_scale is not None or output_block_scale is not None:
            raise InputError("an output in codes: suffice's backend has none")
        if attn_metadata is None:  # vLLM looks how much memory a step takes
            return output.fill_(0)
        step, (keys, values) = attn_metadata, self._halves(kv_cache)
        if count := len(step.owner):
            first = torch.zeros_like(step.length)
            if self.window is not None:
                first = (step.length - self.window).clamp(min=0)
            tokens = step.owner, first, step.length, self.technique, self.scale, step.most
            output[:count] = decode_attention(query[:count], keys, values, step.table, *tokens)[0]
        for each in step.prompts:
            own = slice(each.begin, each.end)
            pages = step.table[each.owner, : -(-each.length // keys.shape[1])]
            rows = (held[pages].flatten(0, 1)[: each.length] for held in (keys, values))
            output[own] = self._prompt(query[own], *rows)
        return output

    def _halves(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a cache [pages, G, rows, 2 D] as [pages, rows, G, D]."""
        rows = kv_cache.transpose(1, 2)
        return rows[..., : self.head_size], rows[..., self.head_size :]

    def _prompt(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the attention [T, H, D] of a request's last tokens to its rows [S, G, D]."""
        count, length = len(q), len(k)
        mask: Any = causal_lower_right(count, length)
        if self.window is not None and self.window < length:
            at = torch.arange(length - count, length, device=q.device)[:, None]
            row = torch.arange(length, device=q.device)
            mask = (row <= at) & (row > at - self.window)
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        found = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=self.scale, enable_gqa=True
        )
        return found[0].transpose(0, 1)
