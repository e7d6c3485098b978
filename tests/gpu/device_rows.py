"""Random keys, values and queries for kernels of GPUs, and what the references make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from suffice.attention import ATTENTIONS
from suffice.attention.traversal import Attended
from suffice.backends.triton.aet_sets import AetSets
from suffice.backends.triton.attend import attend
from suffice.backends.triton.bases import Bases, Rounding
from suffice.backends.triton.call import Blocks, Held, Reads, Tokens
from suffice.backends.triton.rules import HeadRules
from suffice.backends.triton.sketches import Sketches

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Case:
    """Tokens of some requests: queries [N, H, D], keys and values [B, G, S, D].

    Token n sees rows [firsts[n], lengths[n]) of request owners[n]; None: there is one of each.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: Sequence[int]
    firsts: Sequence[int]
    owners: Sequence[int] | None = None

    @classmethod
    def random(
        cls,
        lengths: Sequence[int],
        *,
        heads: int = 2,
        group: int = 4,
        size: int = 64,
        dtype: torch.dtype = torch.float32,
        window: int | None = None,
        seed: int = 0,
    ) -> Case:
        """Return a case whose scores have a standard deviation of 2."""
        made = torch.Generator().manual_seed(seed)
        count, rows = len(lengths), max(lengths)
        q, k, v = (
            torch.randn(count, *shape, size, generator=made).to(dtype)
            for shape in ((heads * group,), (heads, rows), (heads, rows))
        )
        firsts = [max(each - (window or each), 0) for each in lengths]
        return cls(2 * q, k, v, lengths, firsts)

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1] ** -0.5)

    @property
    def owned(self) -> list[int]:
        """The request of each token."""
        return list(range(len(self.lengths)) if self.owners is None else self.owners)

    @property
    def tokens(self) -> Tokens:
        owner, first, length = (
            torch.tensor(each, dtype=torch.int32, device=DEVICE)
            for each in (self.owned, self.firsts, self.lengths)
        )
        return Tokens(owner, first, length, self.k.shape[2])

    def held(self, page: int = 0, seed: int = 0) -> Held:
        """Return keys and values as tensors; with a `page`, in pages of that many rows."""
        k, v = self.k.to(DEVICE), self.v.to(DEVICE)
        if not page:
            return Held(k, v)
        count, heads, rows, size = k.shape
        each = -(-rows // page)
        table = torch.randperm(3 + count * each, generator=torch.Generator().manual_seed(seed))
        table = table[: count * each].view(count, each)
        pages = []
        for x in (k, v):
            padded = torch.nn.functional.pad(x, (0, 0, 0, each * page - rows))
            parts = padded.view(count, heads, each, page, size).permute(0, 2, 3, 1, 4)
            made = torch.full((3 + count * each, page, heads, size), torch.nan, dtype=x.dtype)
            made[table.flatten()] = parts.flatten(0, 1).cpu()
            pages.append(made.to(DEVICE))
        return Held(*pages, table=table.to(torch.int32).to(DEVICE))

    def run(self, technique: str, page: int = 0, **options: Any) -> tuple[torch.Tensor, Reads]:
        """Return the kernel's output, on the CPU, and what was read."""
        held, requests = self.held(page), len(self.lengths)
        rules = options.pop("rules", None) or rules_of(technique, held.heads)
        if rules.kind == "aet" and "sets" not in options:
            options["sets"] = AetSets(rules.parameters, requests, held.heads, DEVICE)
        if rules.sketched and "sketches" not in options:
            rows, size = self.k.shape[2:]
            options["sketches"] = made = Sketches(requests, held.heads, size, rows, DEVICE)
            made.extend(held, self.tokens.length, rows)
        if rules.kind == "tiers" and "bases" not in options:
            options["bases"] = based(self, page)
        found, reads = attend(
            rules, self.q.to(DEVICE), held, self.tokens, scale=self.scale, **options
        )
        return found.cpu(), reads

    def reference(self, technique: str, dtype: type = np.float64, **options: Any) -> list[Attended]:
        """Return what the technique's reference makes of each token."""
        found, own = [], ATTENTIONS.build(technique)
        for at, (first, length) in enumerate(zip(self.firsts, self.lengths, strict=True)):
            k, v = (each[self.owned[at], :, :length] for each in (self.k, self.v))
            rows = (self.q[at][:, None], k, v)
            seen = np.arange(length)[None] >= first
            given = {name: each[at] for name, each in options.items()}
            parts = (each.float().numpy().astype(dtype) for each in rows)
            found.append(own.reference(*parts, scale=self.scale, visible=seen, **given))
        return found


def rules_of(technique: str, heads: int) -> HeadRules:
    """Return a technique's rules for some key/value heads."""
    return HeadRules.of([ATTENTIONS.build(technique).rule()] * heads, DEVICE)


def based(case: Case, page: int = 0, rounding: Rounding | None = None) -> Bases:
    """Return the bases of a case's rows."""
    requests, heads, rows, size = case.k.shape
    made = Bases(requests, heads, size, rows, DEVICE, rounding)
    ends = case.tokens.length if case.owners is None else case.tokens.length[:1]
    made.extend(case.held(page), ends, rows)
    return made


def listed(orders: Sequence[Sequence[Sequence[int]]]) -> Blocks:
    """Return lists of blocks, [N][G][M], which may differ in length, as the kernels take them."""
    most = max(len(own) for token in orders for own in token)
    blocks = [[[*own, *[0] * (most - len(own))] for own in token] for token in orders]
    counts = [[len(own) for own in token] for token in orders]
    return Blocks(
        *(torch.tensor(each, dtype=torch.int32, device=DEVICE) for each in (blocks, counts))
    )
