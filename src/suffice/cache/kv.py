"""The keys and values of one request, in native memory, with spare rows that can hold drafts.

Rows are committed, tentative (drafts in spare rows, to be committed or rolled back) or spare. The
growth policy sets the capacity. Rows are read as they were stored, bit for bit in the storage type.

A KV policy may evict rows. `length` still counts all tokens, which is the next token's position,
while a layer holds `held(layer)` rows. Keys are stored rotated to their position and keep it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from suffice.cache import BLOCK, Growth, LayerRows, check_rows, next_capacity, tail_of
from suffice.cache.tentative import Tentative
from suffice.errors import InputError, OutOfMemory
from suffice.native import core

MAX_TENTATIVE = 32
LEAST_COPIES = 4  # of states, that a cache may keep


class KVCache:
    """One request's cache, whose layers have these `rows`.

    A layer that shares another's rows holds as many, takes no memory, and cannot be written.
    `limit` is the context length in rows. `arena` counts the memory of several caches together and
    may limit it. Optional data of the keys: `sketch`, a 4-bit copy; `boxes`, the smallest and
    largest value of each channel over blocks of 16; `masses`, each key's attention mass so far.
    `bases`: other rows than `planes` in `kmeans4`, too. `rounding`: see `decoder.key_rounding`.
    `joint`: a row is a key, and its first `joint` entries are its value; values that are returned
    have zeros after them. 0: keys and values are apart.
    `states`: sizes of what other layers keep; it is then cut back to `reachable` lengths only.

    Raises:
        InputError: Unknown storage type, one that joint rows cannot have, or a head size that is
            not a multiple of 16.
    """

    def __init__(
        self,
        rows: Sequence[LayerRows],
        *,
        growth: Growth,
        limit: int,
        key_dtype: str = "bfloat16",
        value_dtype: str = "bfloat16",
        arena: core.Arena | None = None,
        sketch: bool = False,
        boxes: bool = False,
        masses: bool = False,
        bases: bool = False,
        rounding: core.KeyRoundings | None = None,
        states: Sequence[core.StateShape] = (),
        joint: int = 0,
    ) -> None:
        for size in {own.size for own in rows}:
            check_rows(size, joint, key_dtype, value_dtype)
        self.native = core.KVCache(
            [own.heads for own in rows],
            [own.size for own in rows],
            [-1 if own.shares is None else own.shares for own in rows],
            key_dtype,
            value_dtype,
            arena or core.Arena(),
            sketch,
            boxes,
            masses,
            bases,
            rounding,
            list(states),
            joint,
        )
        self.stateful = bool(states)
        self.tail = 0.0 if states else tail_of(rows)
        self.growth = growth
        self.limit = limit
        self.tight = False  # grows by whole blocks that are needed, whatever the policy says
        self.length = 0
        self._tree = Tentative()
        self._final = 0  # no truncation to fewer tokens than this: some of their rows are gone

    def heads(self, layer: int) -> int:
        """Return the number of a layer's key/value heads, G."""
        return int(self.native.heads(layer))

    def size(self, layer: int) -> int:
        """Return the entries of a layer's keys, D."""
        return int(self.native.size(layer))

    def held(self, layer: int) -> int:
        """Return how many rows of the committed tokens a layer holds."""
        return self.length - int(self.native.removed(layer))

    @property
    def tentative(self) -> int:
        """Number of tentative rows."""
        return len(self._tree)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.native.layers)

    @property
    def capacity(self) -> int:
        """Rows that fit without another allocation."""
        return int(self.native.capacity)

    @property
    def bytes(self) -> int:
        """Bytes of memory mapped for this cache."""
        return int(self.native.bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return int(self.native.row_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes of rows, including sketches, bases, boxes and masses."""
        return int(self.native.held_bytes(self.length))

    @property
    def spare(self) -> int:
        """Rows that are allocated and hold nothing."""
        return self.capacity - self.length - self.tentative

    def reserve(self, rows: int) -> None:
        """Make room for `rows` more rows, growing by the policy if they do not fit.

        Rows that no later token will see are dropped first, in place, once they are an eighth of
        the held rows. This moves at most eight rows for each row that is added.

        Raises:
            OutOfMemory: There is not enough memory; the cache is unchanged.
        """
        needed = self.length + self.tentative + rows
        if needed > self.limit:
            raise InputError(f"{needed} tokens exceed the context length of {self.limit}")
        if needed <= self.capacity:
            return
        held = max(map(self.held, range(self.layers)))
        if not self.tentative and self.native.dead_rows(self.length) * 8 > held:
            self.native.compact(self.length)
            self._final = self.length
            if needed <= self.capacity:
                return
        capacity = self._next_capacity(needed, self.capacity)
        try:
            self.native.resize(capacity, self.length + self.tentative)
        except core.OutOfMemory as error:
            raise OutOfMemory(str(error)) from None

    def keep_state(self) -> None:
        """Keep a copy of the states, if there is memory, so that `truncate` can return to here.

        All copies together take about as much memory as the rows, or are at most LEAST_COPIES.
        """
        if self.stateful and not self.tentative:
            most = max(self.held_bytes // max(int(self.native.state_bytes), 1), LEAST_COPIES)
            with contextlib.suppress(core.OutOfMemory):
                self.native.keep_states(most)

    def drop_states(self) -> bool:
        """Free the copies of states; return whether there were any."""
        return self.stateful and bool(self.native.drop_states())

    def reachable(self, rows: int) -> int:
        """Return the greatest length of at most `rows` tokens to which it can be truncated."""
        return int(self.native.reachable(rows)) if self.stateful else min(rows, self.length)

    def _next_capacity(self, needed: int, capacity: int) -> int:
        whole = min(-(-needed // BLOCK) * BLOCK, self.limit)
        return whole if self.tight else next_capacity(self.growth, needed, capacity, self.limit)

    def populate(self, size: int) -> bool:
        """Have the system map about `size` bytes more; return whether all memory is mapped."""
        return bool(self.native.populate(size))

    def append(self, layer: int, k: np.ndarray, v: np.ndarray | None) -> None:
        """Write k, v float32 [G, T, D] of one layer to the rows after the committed ones.

        Joint rows have no v. `advance` commits them, once all layers are written.

        Raises:
            InputError: There are tentative rows, which would be overwritten.
        """
        self._require_no_drafts()
        self.native.store(layer, self.length, _floats(k), None if v is None else _floats(v))

    def advance(self, rows: int) -> None:
        """Commit `rows` rows that were appended in every layer."""
        self._require_no_drafts()
        if self.length + rows > self.capacity:
            raise InputError(f"{rows} rows do not fit: {self.length} of {self.capacity} are used")
        self.length += rows

    def _require_no_drafts(self) -> None:
        if self.tentative:
            raise InputError(f"{self.tentative} tentative rows: commit or roll back first")

    def keys(self, layer: int, rows: int | None = None) -> np.ndarray:
        """Return the first `rows` keys (default: the committed ones) as float32 [G, rows, D]."""
        out = self._rows(layer, rows)
        self.native.load(layer, 0, out, None)
        return out

    def values(self, layer: int, rows: int | None = None) -> np.ndarray:
        """Return the first `rows` values (default: the committed ones) as float32 [G, rows, D]."""
        out = self._rows(layer, rows)
        self.native.load(layer, 0, None, out)
        return out

    def _rows(self, layer: int, rows: int | None) -> np.ndarray:
        count = self.held(layer) if rows is None else rows
        return np.empty((self.heads(layer), count, self.size(layer)), np.float32)

    def room(self, drafts: int) -> int:
        """Return how many of `drafts` tentative rows fit into the spare rows.

        If there are too few spare rows, fewer drafts are made instead of growing the cache (as in
        the BMC paper, section VI-A).
        """
        return min(drafts, self.spare, MAX_TENTATIVE - self.tentative)

    def append_tentative(self, k: np.ndarray, v: np.ndarray, parents: list[int]) -> None:
        """Append drafts k, v float32 [L, G, T, D] to the spare rows.

        `parents[i]` is the tentative row that draft i continues, -1 for the last committed row;
        a parent comes before its children.

        Raises:
            InputError: Keys or values of another shape, more drafts than spare rows, or a parent
                that does not come before its child.
        """
        shape = (self.layers, self.heads(0), len(parents), self.size(0))
        for name, rows in (("k", k), ("v", v)):
            if tuple(rows.shape) != shape:
                raise InputError(
                    f"{name} of shape {list(rows.shape)} must be {list(shape)} for this cache and "
                    f"{len(parents)} parents"
                )
        first = self.length + self.tentative
        self.draft(parents)
        for layer in range(self.layers):
            self.native.store(layer, first, _floats(k[layer]), _floats(v[layer]))

    def draft(self, parents: list[int], most: int = MAX_TENTATIVE) -> list[int]:
        """Turn spare rows into tentative rows, at most `most`, which a decode step will write.

        Returns, for each draft, the bit mask of the tentative rows that it sees: itself and its
        ancestors.

        Raises:
            InputError: More drafts than spare rows, or a parent that does not come before its
                child.
        """
        return self._tree.add(parents, min(self.spare, most - self.tentative))

    def visible(self) -> list[int]:
        """Return, per tentative row, the bit mask of the tentative rows that it sees."""
        return list(self._tree.visible)

    def commit(self, path: list[int]) -> None:
        """Keep the tentative rows of `path`, in its order, and drop the others.

        Raises:
            InputError: A row that is not tentative, or does not continue its predecessor in the
                path (for the first: the committed rows).
        """
        self._tree.check(path)
        for target, source in enumerate(path):
            if source != target:
                self.native.move_row(self.length + source, self.length + target)
        if path:
            self.native.settle(path[-1])
            if self.stateful:
                self.native.commit_states(path)
        self.length += len(path)
        self.rollback()

    def rollback(self) -> None:
        """Drop all tentative rows."""
        self._tree = Tentative()

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` committed rows and drop the rest.

        Raises:
            InputError: More rows than are committed, or some of them were evicted.
        """
        self.check_truncate(rows)
        self.rollback()
        if rows < self.length:
            self.native.forget_rows(rows)
            if self.stateful:
                self.native.rewind_states(rows)
        self.length = rows
        self._final = min(self._final, rows)

    def check_truncate(self, rows: int) -> None:
        """Raise the error that `truncate` would raise, if any."""
        if 0 < rows < self._final:
            raise InputError(
                f"cannot truncate to {rows} tokens: some before {self._final} were evicted; a "
                "policy with rank_only=true keeps them"
            )
        if not 0 <= rows <= self.length:
            raise InputError(f"cannot truncate to {rows} rows: {self.length} are committed")
        if (reached := KVCache.reachable(self, rows)) != rows:
            raise InputError(
                f"cannot truncate to {rows} tokens: of the states before that, those after "
                f"{reached} tokens were kept"
            )

    def evict(self, layer: int, rows: np.ndarray) -> None:
        """Keep the committed rows `rows` [G, n] of a layer, ascending, and free the others' memory.

        Raises:
            OutOfMemory: There is not enough memory; the layer is unchanged.
        """
        self._require_no_drafts()
        try:
            self.native.evict(layer, np.ascontiguousarray(rows, np.int32), self.length)
        except core.OutOfMemory as error:
            raise OutOfMemory(str(error)) from None
        self._final = self.length

    def set_visible(self, layer: int, *, sinks: int = 0, recent: int = 0, blocks: int = 0) -> None:
        """Set the rows of a layer that tokens see: the first `sinks` and the last `recent`.

        `recent` includes the token's own row; 0 is all rows. `blocks` limits the blocks of 16 that
        are read, selected by their boxes; 0 is all. With `recent=0`, the blocks of `sinks` are read
        first.
        """
        self.native.set_eligible(layer, sinks, recent, blocks)

    def rank(self, layer: int, order: np.ndarray) -> None:
        """Set the order in which techniques that stop early read the first n blocks of 16 rows.

        `order` [G, n] has the most important block first; newer blocks are read before all of them.
        """
        self.native.set_order(layer, np.ascontiguousarray(order, np.int32))

    def keep_heavy(self) -> None:
        """Evict the row of least mass per head, among `sinks` and the row that leaves `recent`."""
        self.native.keep_heavy(self.length)
        self._final = self.length

    def masses(self, layer: int) -> np.ndarray:
        """Return the attention mass so far of each row of a layer, float32 [G, held]."""
        out = np.empty((self.heads(layer), self.held(layer)), np.float32)
        self.native.load_masses(layer, out)
        return out

    def set_masses(self, layer: int, masses: np.ndarray) -> None:
        """Set the attention mass so far of each row of a layer, float32 [G, held]."""
        self.native.store_masses(layer, _floats(masses))

    def close(self) -> None:
        """Free the memory; the cache is then empty and can be filled again."""
        self.truncate(0)
        self.native.release()

    def fork(self, rows: int | None = None, spare: int | None = None) -> KVCache:
        """Return an independent copy of the first `rows` committed rows (default: all).

        It has memory for `spare` more, by default for as many rows as this cache.

        Raises:
            OutOfMemory: There is no memory for the copy.
        """
        kept = self.length if rows is None else rows
        if kept < self.length:
            self.check_truncate(kept)
        capacity = self.capacity
        if self.tight or spare is not None:
            needed = min(kept + (1 if spare is None else spare), self.limit)
            capacity = max(self._next_capacity(needed, 0), kept)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        try:
            other.native = self.native.copy(kept, capacity)
        except core.OutOfMemory as error:
            raise OutOfMemory(str(error)) from None
        KVCache.truncate(other, kept)
        return other

    def forget_answers(self) -> None:
        """Drop the state that decode steps left, so that the rows are as after a prompt alone."""
        self.native.forget_answers()


def _floats(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows, np.float32)
