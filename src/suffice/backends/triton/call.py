"""What a call of the kernels is about: rows, tokens, lists of blocks, and the arguments of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton

from suffice.backends.triton.whole import join_units
from suffice.cache import BLOCK

LOG2_E = math.log2(math.e)
UNIT = 256  # rows that one program sums up where nothing stops


def shape_of(size: int, group: int) -> dict[str, int]:
    """Return the compile-time values that all kernels take, for a head's size and its queries."""
    dim = triton.next_power_of_2(size)
    rows = max(triton.next_power_of_2(group), 16)
    return {"GROUP": group, "ROWS": rows, "D": size, "DIM": dim, "num_warps": 8 if dim > 64 else 4}


def tile_of(size: int, unit: int) -> int:
    """Return how many rows of a unit are taken at a time: more would not fit the registers.

    It is a power of two, as the language asks, and a unit is a whole number of them.
    """
    return min(unit & -unit, 64, (1024 // int(triton.next_power_of_2(size))) ** 2)


def unit_of(size: int, group: int, unit: int) -> dict[str, int]:
    """Return the compile-time values of kernels that read units of that many rows."""
    shape, tile = shape_of(size, group), tile_of(size, unit)
    shape["num_warps"] = 4 if tile == BLOCK else shape["num_warps"]
    return {**shape, "UNIT": unit, "TILE": tile}


@dataclass(frozen=True)
class Held:
    """Keys and values of some requests, as tensors.

    Contiguous: `keys` and `values` [B, G, C, D], of any strides but for the last. Paged: [pages,
    rows, G, D], with `table` int32 [B, P], the page of each run of that many rows, as vLLM keeps
    them.
    """

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor | None = None

    @property
    def page(self) -> int:
        """Rows of a page; 0 if rows are contiguous."""
        return 0 if self.table is None else self.keys.shape[1]

    @property
    def heads(self) -> int:
        """Key/value heads."""
        return self.keys.shape[1 if self.table is None else 2]

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Elements from a request to the next, from a page, a row and a head to the next."""
        first, second, third, _ = self.keys.stride()
        return (first, 0, third, second) if self.table is None else (0, first, second, third)


@dataclass(frozen=True)
class Tokens:
    """Which rows each of N tokens sees: [first, length) of request `owner`, int32 [N] each.

    A token of no rows has an output of 0. `most`: rows that a token may see at most. Shapes depend
    on it and not on `length`, so that a step can be recorded once and replayed as texts grow.
    """

    owner: torch.Tensor
    first: torch.Tensor
    length: torch.Tensor
    most: int


@dataclass(frozen=True)
class Blocks:
    """Blocks of 16 rows in the order in which each token and key/value head reads them.

    `blocks` int32 [N, G, M] has `counts` int32 [N, G] of them.
    """

    blocks: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True)
class Sums:
    """Sums over the rows that each token and key/value head has read so far.

    For each of N G pairs and its R query heads `peaks`, `totals` [N G, R] and `sums` [N G, R, DIM]
    in units of 2^peak, of `known` int32 [N, G] rows. The kernels add to them in place.
    """

    peaks: torch.Tensor
    totals: torch.Tensor
    sums: torch.Tensor
    known: torch.Tensor


class Filtered(NamedTuple):
    """Weights of rows whose values were read, where some are not.

    Those of all rows that are always read: `peaks` and `totals` [N G, R]; and `kept` [N G, units,
    R], in units of 2^`unit_peaks`, of the first `used` int32 [N, G] units.
    """

    peaks: torch.Tensor
    totals: torch.Tensor
    kept: torch.Tensor
    unit_peaks: torch.Tensor
    used: torch.Tensor

    def total(self, sums: Sums) -> torch.Tensor:
        """Return their sum [N G, R], in the units of `sums`."""
        place = torch.arange(self.kept.shape[1], device=self.kept.device)
        there = (place < self.used.flatten()[:, None])[..., None]
        kept = self.kept * (self.unit_peaks - sums.peaks[:, None]).exp2()
        return self.totals * (self.peaks - sums.peaks).exp2() + torch.where(there, kept, 0).sum(1)


@dataclass(frozen=True)
class Reads:
    """What was read for each token and key/value head, int32 [N, G].

    `keys` and `values`: rows that the output is made of. `fetched`: keys and values that came from
    memory, those included that were read beyond a stop which nobody had seen yet. `sketched`:
    bytes of sketches or bases. `missing` float32 [N, G]: the largest share of a head's softmax that
    may be unread, or its distance where weights are estimated; `shift`: how far outputs may be
    moved, as `suffice.trace` has it. None: there are none, or nothing is known. `sums`: what the
    output was made of; `filtered`: how much of it has a value, None if all. `figures` computes what
    an audit says of estimated weights, None if there are none: see `tier_figures`.
    """

    keys: torch.Tensor
    values: torch.Tensor
    fetched: torch.Tensor
    sums: Sums
    sketched: torch.Tensor | None = None
    missing: torch.Tensor | None = None
    filtered: Filtered | None = None
    shift: torch.Tensor | None = None
    figures: Callable[[], tuple[torch.Tensor, ...]] | None = None


@dataclass
class Call:
    """Arguments that the kernels share."""

    q: torch.Tensor  # [N, H, D]
    held: Held
    tokens: Tokens
    scale: float  # of scores in base 2
    out: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.count, self.query_heads, self.size = self.q.shape
        self.heads = self.held.heads
        self.group = self.query_heads // self.heads
        self.part = shape_of(self.size, self.group)
        self.rows, self.dim = self.part["ROWS"], self.part["DIM"]
        self.out = torch.zeros_like(self.q)
        self.pairs = self.count * self.heads

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return room [N G, ...], not set."""
        return torch.empty(self.pairs, *shape, dtype=dtype, device=self.q.device)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return zeros [N G, ...]."""
        return torch.zeros(self.pairs, *shape, dtype=dtype, device=self.q.device)

    def of_units(self, units: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return room for peaks, totals and sums of units."""
        peaks, totals = self.empty(units, self.group), self.empty(units, self.group)
        return peaks, totals, self.empty(units, self.group, self.dim)

    def inputs(self, listed: Blocks | None, marks: torch.Tensor | None = None) -> tuple[Any, ...]:
        """Return the tensors that are read."""
        none, tokens = self.tokens.owner, self.tokens  # not read
        blocks = marks if listed is None else listed.blocks
        optional = (none if each is None else each for each in (self.held.table, blocks))
        rows = self.q, self.held.keys, self.held.values
        of_tokens = tokens.owner, tokens.first, tokens.length
        return (*rows, *optional, self.counts(listed), *of_tokens)

    def counts(self, listed: Blocks | None) -> torch.Tensor:
        """Return the numbers of blocks in lists; without lists, what is not read."""
        return self.tokens.owner if listed is None else listed.counts

    def strides(self, listed: Blocks | None, marks: torch.Tensor | None = None) -> tuple[int, ...]:
        """Return the strides of the tensors that are read."""
        table = 0 if self.held.table is None else self.held.table.stride(0)
        lists = marks if listed is None else listed.blocks
        blocks = 0 if lists is None else lists.shape[-1]
        return (*self.q.stride()[:2], *self.held.strides, table, blocks)

    def shapes(self, unit: int, listed: Blocks | None) -> dict[str, Any]:
        """Return the compile-time values."""
        shape = unit_of(self.size, self.group, unit)
        return {**shape, "PAGE": self.held.page, "LISTED": listed is not None}

    def units(self, unit: int, listed: Blocks | None) -> int:
        """Return the largest number of units of a token and key/value head."""
        rows = self.tokens.most if listed is None else listed.blocks.shape[-1] * BLOCK
        return -(-rows // unit)

    def join(
        self, of_units: Sequence[torch.Tensor], sums: Sums, listed: Blocks | None, unit: int
    ) -> None:
        """Add peaks, totals and sums of units to sums; store the output."""
        join_units[(self.pairs,)](
            *of_units, self.counts(listed), self.tokens.first, self.tokens.length, self.out,
            sums.peaks, sums.totals, sums.sums, of_units[0].shape[1], *self.out.stride()[:2],
            self.heads, **self.part, UNIT=unit, LISTED=listed is not None,
        )  # fmt: skip

    def rows_of(self, listed: Blocks) -> torch.Tensor:
        """Return how many rows of lists each token sees, int32 [N, G]."""
        block = listed.blocks
        first, length = self.tokens.first[:, None, None], self.tokens.length[:, None, None]
        begin, end = (
            torch.maximum(block * BLOCK, first),
            torch.minimum((block + 1) * BLOCK, length),
        )
        there = torch.arange(block.shape[-1], device=block.device) < listed.counts[..., None]
        return ((end - begin).clamp(min=0) * there).sum(-1, dtype=torch.int32)

    def none(self) -> Sums:
        """Return the sums of no rows."""
        totals = self.zeros(self.group, dtype=torch.float32)
        sums = self.zeros(self.group, self.dim, dtype=torch.float32)
        known = self.zeros().view(self.count, self.heads)
        return Sums(totals - torch.inf, totals, sums, known)
