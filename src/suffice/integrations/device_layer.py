"""One layer's keys and values of a batch of requests on a GPU, and what its technique keeps.

Lengths are on the device, and shapes follow from the capacity. So what `store` and `attend` do can
be recorded once and replayed while texts grow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from suffice.attention.levels import Levels
from suffice.backends.triton.aet_sets import AetSets
from suffice.backends.triton.attend import attend
from suffice.backends.triton.bases import Bases, Rounding
from suffice.backends.triton.call import Blocks, Held, Reads, Tokens
from suffice.backends.triton.coded import Tables, ValueSums
from suffice.backends.triton.rules import HeadRules
from suffice.backends.triton.sketches import Sketches
from suffice.backends.triton.store import store
from suffice.cache import BLOCK, Growth, next_capacity
from suffice.integrations.device_boxes import Boxes
from suffice.integrations.grown import grown


@dataclass(frozen=True)
class Ring:
    """How a request's rows go round: the first `sinks` stay, and once there are `budget` rows, a
    new one takes the place of the oldest other one."""

    sinks: int
    budget: int


class DeviceLayer:
    """The rows of a layer. `lengths` int32 [B] counts those of each request, on the device.

    `rows` are the same numbers, and the largest is never below what `lengths` has.
    """

    def __init__(
        self,
        like: torch.Tensor,
        rules: HeadRules,
        lengths: torch.Tensor,
        *,
        boxed: bool,
        rounding: Rounding | None = None,
    ) -> None:
        """Hold no rows yet; `like` [B, G, T, D] are keys of the model, with their `rounding`."""
        batch, heads, _, size = like.shape
        self.rules, self.lengths = rules, lengths
        self.keys = like.new_empty(batch, heads, 0, size)
        self.values = self.keys.clone()
        self.rows = [0] * batch
        known = rules.kind == "aet"
        device = like.device
        self.sketches = Sketches(batch, heads, size, 0, device) if rules.sketched else None
        self.sets = AetSets(rules.parameters, batch, heads, device) if known else None
        based = rules.kind == "tiers"
        self.bases = Bases(batch, heads, size, 0, device, rounding) if based else None
        self.boxes = Boxes(batch, heads, size, device) if boxed else None
        # What is kept of each row or block, which grows and is cut with them.
        kept = self.sketches, self.bases, self.boxes
        self._kept = [each for each in kept if each is not None]
        self.tables: Tables | None = None
        self.value_sums: ValueSums | None = None
        self.turns = False  # whether this pass goes by the rings: one of a single token
        self._rings: list[Ring | None] = [None] * batch
        self._ring_of = torch.zeros(2, batch, dtype=torch.int32, device=device)
        self._ranked = torch.zeros(batch, dtype=torch.int32, device=device)
        self._order = torch.zeros(batch, heads, 0, dtype=torch.int32, device=device)

    def weigh_by(self, levels: Sequence[Levels]) -> None:
        """Weigh keys by the levels [H] of a coded softmax."""
        batch, heads, _, size = self.keys.shape
        self.tables = Tables.of(levels, self.keys.device)
        self.value_sums = ValueSums(batch, heads, size, self.keys.device)

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def capacity(self) -> int:
        """Rows of each request that fit."""
        return int(self.keys.shape[2])

    def fits(self, new: Sequence[int]) -> bool:
        """Return whether `new` rows of each request fit."""
        return self._needed(new) <= self.capacity

    def reserve(self, new: Sequence[int], growth: Growth, limit: int) -> None:
        """Make room for `new` rows of each request, which do not fit.

        Raises:
            OutOfMemory: There is none; nothing has changed.
        """
        self._resize(next_capacity(growth, self._needed(new), self.capacity, limit))

    def _needed(self, new: Sequence[int]) -> int:
        return max(
            min(rows + count, ring.budget) if ring and self.turns else rows + count
            for rows, count, ring in zip(self.rows, new, self._rings, strict=True)
        )

    def _resize(self, capacity: int) -> None:
        used = min(max(self.rows), self.capacity)
        pair = [grown(rows, used, capacity) for rows in (self.keys, self.values)]
        for each in self._kept:
            each.reserve(capacity)
        self.keys, self.values = pair

    def store(self, key: torch.Tensor, value: torch.Tensor, ranks: torch.Tensor) -> None:
        """Store key, value [B, G, T, D]; `ranks` [B, T]: see `tokens`."""
        place = torch.where(ranks > 0, self.lengths[:, None] + ranks - 1, -1)
        if self.turns and any(self._rings):
            sinks, budget = self._ring_of[:, :, None]
            turned = sinks + (place - sinks) % (budget - sinks)
            place = torch.where((budget > 0) & (place >= budget), turned, place)
        held = Held(self.keys, self.values)
        store(held, key, value, place)
        for each in self._kept:
            each.extend(held, self.lengths + ranks.amax(1), key.shape[2])

    def tokens(self, ranks: torch.Tensor, window: int | None) -> Tokens:
        """Return what the new tokens see: the last `window` rows, or all.

        `ranks` int32 [B, T]: a token is the n-th new one of its request; 0: there is none.
        """
        batch, columns = ranks.shape
        length = torch.where(ranks > 0, self.lengths[:, None] + ranks, 0)
        if self.turns and any(self._rings):
            budget = self._ring_of[1, :, None]
            length = torch.where(budget > 0, torch.minimum(length, budget), length)
        length = length.flatten().int()
        first = (length - window).clamp(min=0) if window else torch.zeros_like(length)
        owner = torch.arange(batch, dtype=torch.int32, device=ranks.device)
        return Tokens(owner.repeat_interleave(columns), first, length, self.capacity)

    def attend(self, q: torch.Tensor, tokens: Tokens, scale: float) -> tuple[torch.Tensor, Reads]:
        """Return the output [N, H, D] of queries q [N, H, D], and what was read."""
        found, reads = attend(
            self.rules,
            q,
            Held(self.keys, self.values),
            tokens,
            scale=scale,
            blocks=self._blocks(q, tokens),
            sets=self.sets,
            sketches=self.sketches,
            bases=self.bases,
            tables=self.tables,
            value_sums=self.value_sums,
        )
        if self.boxes is not None and self.boxes.limited:
            reads = dataclasses.replace(reads, sketched=self.boxes.bytes_read(tokens))
        return found, reads

    def attend_exactly(self, q: torch.Tensor, tokens: Tokens, scale: float) -> Reads:
        """Return the reads of attention to all rows."""
        rules = HeadRules.of([None] * self.keys.shape[1], q.device)
        return attend(rules, q, Held(self.keys, self.values), tokens, scale=scale)[1]

    def _blocks(self, q: torch.Tensor, tokens: Tokens) -> Blocks | None:
        """Return the order of the blocks that a policy chose, None without one."""
        if self.boxes is not None and self.boxes.limited:
            return self.boxes.ranked(q, tokens)
        if self._order.shape[-1] == 0 or self.rules.kind != "art":
            return None  # no rule that stops before all keys are read
        unit = int(self.rules.parameters.get("check_blocks", 1))
        return in_order(tokens, self._order, self._ranked, unit, self.capacity)

    def commit(self, new: Sequence[int]) -> None:
        """Count `new` rows of each request, whose lengths have been advanced."""
        self.rows = [a + b for a, b in zip(self.rows, new, strict=True)]

    def truncate(self, lost: Sequence[int]) -> None:
        """Drop the last rows of each request."""
        self.rows = [a - b for a, b in zip(self.rows, lost, strict=True)]
        self.lengths.copy_(torch.tensor(self.rows, dtype=torch.int32))
        for each in self._kept:
            each.truncate(self.lengths)
        if self.value_sums is not None:
            self.value_sums.truncate(Held(self.keys, self.values), self.lengths)

    def select(self, indices: list[int], lengths: torch.Tensor) -> None:
        """Let request i go on with the rows of request `indices[i]`; `lengths` are the new ones."""
        at = torch.tensor(indices, device=self.keys.device)
        self.keys, self.values, self.lengths = self.keys[at], self.values[at], lengths
        for each in (*self._kept, self.sets, self.value_sums):
            if each is not None:
                each.select(at)
        self.rows = [self.rows[index] for index in indices]
        self._rings = [self._rings[index] for index in indices]
        self._ring_of, self._ranked = self._ring_of[:, at], self._ranked[at]
        self._order = self._order[at]

    def evict(self, request: int, kept: np.ndarray) -> None:
        """Keep the rows `kept` [G, n] of a request, in that order."""
        at = (
            torch.from_numpy(kept)
            .to(self.keys.device)[..., None]
            .expand(-1, -1, self.keys.shape[-1])
        )
        for rows in (self.keys, self.values):
            rows[request, :, : kept.shape[1]] = rows[request].gather(1, at)
        if self.value_sums is not None:
            self.value_sums.forget(request)
        self.rows[request] = kept.shape[1]
        self.lengths[request] = kept.shape[1]

    def shrink(self, growth: Growth, limit: int) -> None:
        """Free the memory of rows that were evicted."""
        capacity = next_capacity(growth, max(self.rows) or 1, 0, limit)
        if capacity < self.capacity:
            self._resize(capacity)

    def turn(self, request: int, ring: Ring) -> None:
        """Let a request's rows go round."""
        self.value_sums = None  # which cannot follow rows that are replaced
        self._rings[request] = ring
        self._ring_of[0, request], self._ring_of[1, request] = ring.sinks, ring.budget

    def rank(self, request: int, order: np.ndarray) -> None:
        """Set the order [G, n] of a request's first n blocks, which come after newer ones."""
        count = order.shape[1]
        missing = count - self._order.shape[-1]
        if missing > 0:
            self._order = torch.nn.functional.pad(self._order, (0, missing))
        self._order[request, :, :count] = torch.from_numpy(order).to(self._order)
        self._ranked[request] = count


def in_order(
    tokens: Tokens, order: torch.Tensor, ranked: torch.Tensor, unit: int, capacity: int
) -> Blocks:
    """Return the blocks after the first `ranked` [B], newest first, and then the others in `order`.

    `order` int32 [B, G, M]. Blocks of a multiple of `unit` are checked together, and come in the
    order of memory.
    """
    owner = tokens.owner.long()
    blocks, first = (tokens.length + BLOCK - 1) // BLOCK, ranked[owner]
    place = torch.arange(-(-capacity // BLOCK), dtype=torch.int32, device=owner.device)
    last = torch.maximum((blocks - 1) // unit * unit, first)[
        :, None
    ]  # where the newest unit begins
    there = blocks[:, None] - last
    after = place - there
    of_unit = ((blocks[:, None] - 1) // unit - 1 - after // unit) * unit + after % unit
    shift = torch.where(of_unit // unit == first[:, None] // unit, first[:, None] % unit, 0)
    newer = torch.where(place < there, last + place, of_unit + shift)
    count = (blocks - first)[:, None]
    old = order[owner].gather(
        2,
        (place - count)
        .clamp(0, order.shape[-1] - 1)[:, None]
        .long()
        .expand(-1, order.shape[1], -1),
    )
    chosen = torch.where((place < count)[:, None], newer[:, None], old)
    counts = blocks[:, None].expand(chosen.shape[:2]).contiguous()
    return Blocks(chosen.int().contiguous(), counts)
