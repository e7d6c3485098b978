"""Exact attention of a decode step next to PyTorch's kernels and the rate of copies."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.parts import Cell, Part, Place
from benchmarks.harness.tables import CellStore, markdown
from suffice.backends.triton.attend import attend
from suffice.backends.triton.call import Held, Tokens
from suffice.backends.triton.rules import HeadRules

HEADS = ((32, 8), (64, 8))
BATCHES = (1, 8, 32)
ROWS = (4096, 16384, 32768, 65536, 131072)
SIZE = 128
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
COLUMNS = ("copy", "suffice", *BACKENDS, "flex")


def cells(place: Place) -> Iterator[Cell]:
    """Return a cell for each shape and way to compute."""
    shapes = itertools.product(HEADS, BATCHES, ROWS)
    for (queries, shared), batch, rows in [((4, 2), 2, 100)] if place.tiny else shapes:
        case = Case(place, (batch, queries, shared, rows, 32 if place.tiny else SIZE))
        name = f"{queries}/{shared} heads, batch {batch}, {rows} keys"
        for column in COLUMNS:
            yield Cell(name, column, partial(case.measure, column))


class Case:
    """Keys, values and queries of a shape, made when they are first needed."""

    _made: tuple[Any, tuple[torch.Tensor, ...]] | None = None  # of the shape used last

    def __init__(self, place: Place, shape: tuple[int, int, int, int, int]) -> None:
        self.place, self.shape = place, shape

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values."""
        batch, _, shared, rows, size = self.shape
        return 4 * batch * shared * rows * size

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return queries [B, H, 1, D], keys and values [B, G, S, D]."""
        if Case._made is None or Case._made[0] != (self.place, self.shape):
            Case._made = None
            batch, heads, shared, rows, size = self.shape
            held = (self.place.random(batch, shared, rows, size) for _ in range(2))
            made = (self.place.random(batch, heads, 1, size), *held)
            Case._made = (self.place, self.shape), made
        return Case._made[1]

    def measure(self, column: str) -> dict[str, Any]:
        """Return the seconds of a way to compute, and its distance from SDPA."""
        if column == "copy":
            return {"bytes_per_second": self.place.copied_bytes_per_second()}
        if self.bytes > 0.8 * self.place.memory:
            return {"skipped": "memory"}
        q, k, v = self.tensors()
        work = self.suffice() if column == "suffice" else self.torch(column)
        expected = scaled_dot_product_attention(q, k, v, enable_gqa=True)[:, :, 0].float()
        error = (work().float().view_as(expected) - expected).norm() / expected.norm()
        return {"seconds": self.place.seconds(work), "bytes": self.bytes, "error": float(error)}

    def suffice(self) -> Callable[[], torch.Tensor]:
        """Return a call of suffice's kernel."""
        q, k, v = self.tensors()
        batch, _, shared, rows, size = self.shape
        owner = torch.arange(batch, dtype=torch.int32, device=q.device)
        tokens = Tokens(owner, 0 * owner, 0 * owner + rows, rows)
        rules = HeadRules.of([None] * shared, q.device)
        held, scale = Held(k, v), size**-0.5
        return lambda: attend(rules, q[:, :, 0], held, tokens, scale=scale)[0]

    def torch(self, column: str) -> Callable[[], torch.Tensor]:
        """Return a call of one of PyTorch's kernels."""
        q, k, v = self.tensors()
        if column == "flex":
            from torch.nn.attention.flex_attention import flex_attention

            if self.place.cuda:
                flex = torch.compile(flex_attention)
                return lambda: flex(q, k, v, enable_gqa=True)
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            return lambda: flex_attention(q, k, v, enable_gqa=True)

        def call() -> torch.Tensor:
            with sdpa_kernel(BACKENDS[column] if self.place.cuda else SDPBackend.MATH):
                return scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return call


def table(store: CellStore) -> str:
    """Return the share of the rate of copies, and the speed over each of PyTorch's kernels."""
    head = ["", "copy GB/s", "suffice ms", "of copy's rate", *(f"over {x}" for x in COLUMNS[2:])]
    rows = []
    for name, found in store.cells.items():
        rate, own = found.get("copy", {}).get("bytes_per_second"), found.get("suffice", {})
        if rate is None or "seconds" not in own:
            continue
        peers = [found.get(each, {}).get("seconds") for each in COLUMNS[2:]]
        over = ["" if each is None else each / own["seconds"] for each in peers]
        share = own["bytes"] / own["seconds"] / rate
        rows.append([name, rate / 1e9, 1e3 * own["seconds"], share, *over])
    return markdown(head, rows)


PART = Part("exact", "exact attention next to SDPA, FlexAttention and copies", cells, table)
