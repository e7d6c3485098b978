"""A runner that computes nothing: its calls advance a clock by what they would take.

Lengths, capacities and bytes of caches are those that the model would have, by the same growth
policy and the same limit; all tokens are 0. The decode loop, its scheduler, its memory and its
prefix store do not know the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from suffice.cache import BLOCK, GROWTHS, Growth, next_capacity
from suffice.decoder.pooling import Pooling
from suffice.engine.protocol import Rows
from suffice.engine.steps import UNIT
from suffice.errors import InputError, OutOfMemory
from suffice.plan.costs import Call, Hardware, StepCosts
from suffice.plan.stored import Model
from suffice.speculate import NO_DRAFTS, DraftingSample, Tree, Widths
from suffice.trace import Reads, Trace

VOCABULARY = 1 << 31  # so that every prompt can have tokens of its own


@dataclass
class Clock:
    """Simulated seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@dataclass
class Arena:
    """The bytes of all caches of an engine; `limit` 0 is none."""

    limit: int = 0
    used: int = 0
    most: int = 0

    def take(self, fresh: int, copied: int, freed: int) -> None:
        """Replace `freed` bytes by `fresh` ones, with `copied` bytes more meanwhile.

        Raises:
            OutOfMemory: The limit is reached; nothing has changed.
        """
        if self.limit and self.used - freed + fresh + copied > self.limit:
            raise OutOfMemory(
                f"the KV cache needs {fresh + copied} more bytes, but its limit is {self.limit} "
                f"and {self.used - freed} are in use"
            )
        self.used += fresh - freed
        self.most = max(self.most, self.used)


class Cache:
    """The length and the memory of a request's keys and values."""

    stateful = False
    tail = 0.0

    def __init__(self, model: Model, row_bytes: int, growth: Growth, limit: int, arena: Arena):
        self.length = self.capacity = 0
        self.limit = limit
        self.unmapped = 0  # bytes
        self.tight = False  # grows by whole blocks that are needed
        self._model, self._row_bytes, self._growth, self._arena = model, row_bytes, growth, arena

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        return self.capacity * self._row_bytes

    def reachable(self, rows: int) -> int:
        """Return the greatest length of at most `rows` tokens to which it can be cut back."""
        return min(rows, self.length)

    def keep_state(self) -> None:
        """Keep no states, as there are none."""

    def drop_states(self) -> bool:
        """Return whether copies of states were dropped: there are none."""
        return False

    def reserve(self, rows: int) -> int:
        """Make room for more rows; return how many were copied.

        Raises:
            OutOfMemory: There is not enough memory; nothing has changed.
        """
        needed = self.length + rows
        if needed > self.limit:
            raise InputError(f"{needed} tokens exceed the context length of {self.limit}")
        if needed <= self.capacity:
            return 0
        whole = min(-(-needed // BLOCK) * BLOCK, self.limit)
        loose = next_capacity(self._growth, needed, self.capacity, self.limit)
        self.resize(whole if self.tight else loose, self.length)
        return self.length

    def resize(self, capacity: int, kept: int) -> None:
        """Take memory for a number of rows; `kept` of them are copied, a layer at a time.

        Raises:
            OutOfMemory: There is not enough memory; nothing has changed.
        """
        copied = -(-self.bytes // self._model.layers) if kept else 0
        self._arena.take(capacity * self._row_bytes, copied, self.bytes)
        self.unmapped = (capacity - kept) * self._row_bytes
        self.capacity = capacity

    def fork(self, rows: int, spare: int | None) -> Cache:
        """Return a copy of the first rows, see `KVCache.fork`.

        Raises:
            OutOfMemory: There is not enough memory.
        """
        copy = Cache(self._model, self._row_bytes, self._growth, self.limit, self._arena)
        capacity = self.capacity
        if spare is not None:
            needed = min(rows + spare, self.limit)
            capacity = max(next_capacity(self._growth, needed, 0, self.limit), rows)
        copy.resize(capacity, 0)
        copy.unmapped -= rows * self._row_bytes
        copy.length = rows
        return copy

    def truncate(self, rows: int) -> None:
        """Drop all rows after the first `rows`."""
        assert 0 <= rows <= self.length, "rows that are there"
        self.length = rows

    def close(self) -> None:
        """Free the memory."""
        self._arena.take(0, 0, self.bytes)
        self.length = self.capacity = self.unmapped = 0


@dataclass(eq=False)
class Held:
    """A sample's state; `tentative` rows wait for their commit."""

    cache: Cache
    tentative: int = 0
    reads: Reads = field(default_factory=Reads)


class SimulatedRunner:
    """What the loop drives instead of a model; see `suffice.engine.protocol.LoopRunner`.

    `hardware` says, when a call is made, what the engine has at that time. `busy` are the seconds
    of all calls and of memory so far, `decoded` the samples that calls ran since it was set to 0.
    """

    most_drafts = 0
    prompts_by_technique = False
    vocabulary = VOCABULARY
    maxima = None
    pooling = Pooling(1)

    def __init__(
        self,
        model: Model,
        costs: StepCosts,
        clock: Clock,
        hardware: Callable[[], Hardware],
        kv_cache_bytes: int = 0,
    ) -> None:
        self.trace = Trace(1, 1)
        self.arena = Arena(kv_cache_bytes)
        self.busy = 0.0
        self.decoded = 0
        self._model, self._costs, self._clock = model, costs, clock
        self._hardware = hardware
        self._growth: Growth = GROWTHS.build(model.growth)
        self._row_bytes = round(costs.row_bytes)

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Bytes of all caches, and their limit (0: none)."""
        return self.arena.used, self.arena.limit

    @property
    def tile_unit(self) -> int:
        """Parts of a prompt, but for the last, have a multiple of this number of tokens."""
        return UNIT

    @property
    def tile_rows(self) -> int:
        """The largest number of a prompt's tokens in a step."""
        return self._model.tile_rows

    @property
    def known_rows(self) -> int:
        """The largest number of known tokens of a sequence in a decode step."""
        return self._model.known_rows

    @property
    def shares_prompts(self) -> bool:
        """Whether a prompt's rows serve other prompts that begin alike."""
        return self._model.shares_prompts

    def shares_answers(self, technique: int = 0) -> bool:
        """Whether rows of decode steps are those that a prompt would have."""
        return self._model.shares_answers

    def guarantee(self, technique: int = 0, *, prompt_read: bool = False) -> Literal["exact"]:
        """Return what is known of the softmax: nothing is computed, so nothing is left out."""
        return "exact"

    def bytes_of(self, rows: int) -> int:
        """Return how many bytes a sequence of `rows` tokens takes when it next grows."""
        context = self._model.context
        return next_capacity(self._growth, min(rows + 1, context), 0, context) * self._row_bytes

    def spend(self, seconds: float) -> None:
        """Let time pass in which the engine works."""
        self.busy += seconds
        self._clock.now += seconds

    def open(self, request_id: str, limit: int) -> Held:
        """Return a new, empty sequence."""
        return Held(Cache(self._model, self._row_bytes, self._growth, limit, self.arena))

    def begin(self, sequence: Held, rows: int) -> None:
        """Reserve memory for a prompt and the first row after it."""
        cache = sequence.cache
        self._copied(cache.reserve(min(rows + 1, cache.limit - cache.length)))

    def populate(self, sequence: Held, size: int) -> bool:
        """Map `size` more bytes, in whole layers; return whether all is mapped."""
        cache = sequence.cache
        layer = max(-(-cache.bytes // self._model.layers), 1)
        mapped = min(-(-size // layer) * layer, cache.unmapped)
        cache.unmapped -= mapped
        self.spend(mapped * self._costs.mapped)
        return cache.unmapped == 0

    def reserve(
        self, sequence: Held, rows: int = 1, drafts: int = 0, tokens_per_step: float = 1.0
    ) -> int:
        """Reserve rows; return how many more, at most `drafts`, are there without growing."""
        cache = sequence.cache
        self._copied(cache.reserve(rows))
        return max(min(drafts, cache.capacity - cache.length - rows), 0)

    def follow(self, sequences: Sequence[Held]) -> None:
        """Do nothing: there is no head."""

    def propose(self, samples: Sequence[DraftingSample], shapes: list[Widths]) -> list[Tree]:
        """Return no drafts."""
        return [NO_DRAFTS for _ in samples]

    def forget(self, sample: DraftingSample) -> None:
        """Do nothing: there are no drafts."""

    def run(self, batch: Sequence[Rows]) -> list[np.ndarray]:
        """Let the time of a call pass; the logits [outputs, 1] know one token."""
        self.spend(self._costs.seconds(Call.of(batch), self._hardware()))
        outputs = []
        total = np.zeros((sum(rows.count for rows in batch), 1), np.float32)
        at = 0
        for rows in batch:
            outputs.append(total[at : at + rows.count])
            at += rows.count
            if rows.prompt:
                rows.sequence.cache.length += len(rows.tokens)
            else:
                rows.sequence.tentative = len(rows.tokens)
                self.decoded += 1
        return outputs

    def commit(self, sequence: Held, path: list[int]) -> None:
        """Keep the rows of a step."""
        assert len(path) <= sequence.tentative, "rows that were run"
        sequence.cache.length += len(path)
        sequence.tentative = 0

    def end(self, sequence: Held) -> None:
        """Do nothing: no policy chooses among a prompt's tokens."""

    def rewind(self, sequence: Held, rows: int) -> None:
        """Cut a sequence back."""
        sequence.cache.truncate(rows)

    def fork(self, sequence: Held, rows: int | None = None, spare: int | None = None) -> Held:
        """Return a copy of a sequence's first rows."""
        kept = sequence.cache.length if rows is None else rows
        copy = Held(sequence.cache.fork(kept, spare))
        self._copied(kept)
        return copy

    def close(self, sequence: Held) -> None:
        """Free a sequence's memory."""
        sequence.cache.close()

    def _copied(self, rows: int) -> None:
        self.trace.growth_bytes_copied += rows * self._row_bytes
        self.spend(rows * self._row_bytes * self._costs.copied)


class NoText:
    """A tokenizer of tokens without text, as the engine asks it; it never ends an answer."""

    eos_ids: frozenset[int] = frozenset()

    def stream(self, *, skip_special: bool, marked: Sequence[int] = ()) -> NoText:
        """Return a detokenizer, which is itself: it has no state."""
        return self

    def push(self, token: int) -> Literal[""]:
        """Return no text."""
        return ""

    def flush(self) -> Literal[""]:
        """Return no text."""
        return ""

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return no tokens."""
        return []
