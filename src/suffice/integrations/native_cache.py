"""The keys and values of a transformers model in suffice's native caches, one per request.

Padding is never stored: whatever a technique does, it cannot be seen. `Requests` holds the rows of
all layers and attends to them; `NativeLayer` and `NativeCache` are what transformers sees of it.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from suffice.attention import Attention
from suffice.attention.kernel import attend
from suffice.cache import KV_BYTES, Growth
from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.errors import InputError, unknown
from suffice.integrations.masks import Columns
from suffice.trace import Trace

_STORED = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Requests:
    """The caches of a batch of requests.

    The rows of a forward pass are open until the next one. If it `decodes`, they are tentative, so
    that those of refused drafts leave no trace in what a technique has learnt.
    """

    def __init__(self, layers: int, attention: Attention, growth: Growth, limit: int) -> None:
        self.layers = layers
        self.attention = attention
        self.rule = attention.rule()
        self.growth = growth
        self.limit = limit
        self.trace: Trace | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all requests and give their memory back."""
        self.caches: list[KVCache] = []
        self.columns = Columns()
        self._appended: list[int] = []  # rows of a prompt that are not committed yet
        self.decodes = False

    @property
    def bytes(self) -> int:
        """Bytes of memory mapped for all requests."""
        return sum(cache.bytes for cache in self.caches)

    def begin(self, key: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Make room for a pass over T new columns, of which key [B, G, T, D] is the first layer's.

        `mask` bool [B, 1, T, S + T] says what is padding: a new column that does not see itself.

        Raises:
            InputError: More rows than the limit, another batch, or a type that cannot be stored.
        """
        self.settle()
        batch, heads, count, size = key.shape
        if not self.caches:
            self.caches = [self._new(heads, size, key.dtype) for _ in range(batch)]
            self.trace = self.trace or Trace(self.layers, heads)
        if batch != len(self.caches):
            raise InputError(f"a batch of {batch}: the cache holds {len(self.caches)} requests")
        self.decodes = self.columns.count > 0 and count <= MAX_TENTATIVE
        counts = self.columns.add(batch, count, mask)
        for cache, rows in zip(self.caches, counts, strict=True):
            cache.reserve(rows)
            if self.decodes:
                cache.draft(list(range(-1, rows - 1)))
        self._appended = [] if self.decodes else counts
        if self.decodes and self.trace:
            self.trace.steps += 1

    def _new(self, heads: int, size: int, dtype: torch.dtype) -> KVCache:
        if dtype not in _STORED:
            raise unknown("type of keys and values", str(dtype), map(str, _STORED))
        stored = _STORED[dtype]
        return KVCache(
            self.layers,
            heads,
            size,
            growth=self.growth,
            limit=self.limit,
            key_dtype=stored,
            value_dtype=stored,
            sketch=self.attention.sketched,
        )

    def settle(self) -> None:
        """Commit the rows of the last pass."""
        for cache, rows in zip(self.caches, self._appended, strict=False):
            cache.advance(rows)
        self._appended = []
        for cache in self.caches:
            cache.commit(list(range(cache.tentative)))

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key, value [B, G, T, D] of a layer.

        Raises:
            InputError: They are of another shape than those of the first layer.
        """
        held = self.caches[0].native
        shape = (len(self.caches), held.heads, key.shape[2], held.size)
        for name, rows in (("keys", key), ("values", value)):
            if tuple(rows.shape) != shape:
                raise InputError(
                    f"layer {layer} has {name} of shape {list(rows.shape)}: all layers must have "
                    f"{held.heads} heads of {held.size}"
                )
        for index, cache in enumerate(self.caches):
            new = self.columns.new(index)
            pair = (_floats(rows[index][:, new]) for rows in (key, value))
            cache.native.store(layer, cache.length, *pair)

    def dense(self, layer: int, new: torch.Tensor, *, values: bool = False) -> torch.Tensor:
        """Return all keys, or values, of a layer as [B, G, S, D] where `new` are those of a prompt.

        They are zero where there is padding.
        """
        if self.columns.count == new.shape[2]:
            return new
        batch, heads, _, size = new.shape
        dense = new.new_zeros(batch, heads, self.columns.count, size)
        for index, (cache, rows) in enumerate(zip(self.caches, self._appended, strict=True)):
            load = cache.values if values else cache.keys
            found = load(layer, cache.length + rows)
            dense[index][:, self.columns.held[index]] = found.to(dense.dtype)
        return dense

    def decode(
        self, layer: int, query: torch.Tensor, mask: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """Return what query [B, H, T, D] attends to, by the technique; 0 where there is padding.

        Raises:
            InputError: The mask is neither causal nor a sliding window, besides the padding.
        """
        window = self.columns.window(mask)
        output = torch.zeros_like(query)
        assert self.trace is not None
        self.trace.group = query.shape[1] // self.caches[0].kv_heads
        for index, cache in enumerate(self.caches):
            if not cache.tentative:
                continue
            new = self.columns.new(index)
            found, reads = attend(
                self.rule, query[index][:, new].float(), cache, layer, scale=scale, window=window
            )
            output[index][:, new] = found.to(output.dtype)
            self._count(layer, cache, reads)
        return output

    def _count(self, layer: int, cache: KVCache, reads: list[Any]) -> None:
        trace = self.trace
        assert trace is not None
        row_bytes = cache.native.size * KV_BYTES[cache.native.key_type]  # of a key, or of a value
        for head, read in enumerate(reads):
            rows = read.key_rows, read.value_rows, read.held_rows, read.alone_rows
            trace.rows[:, layer, head] += rows
            trace.kv_bytes_read += (read.key_rows + read.value_rows) * row_bytes + read.sketch_bytes
            trace.sketch_bytes_read += read.sketch_bytes
            trace.kv_bytes_held += 2 * read.held_rows * row_bytes
            trace.missing = max(trace.missing, read.missing)

    def crop(self, columns: int) -> None:
        """Forget the last columns. What a technique learnt from tentative ones is forgotten too."""
        for cache, rows in zip(self.caches, self._appended, strict=False):
            cache.advance(rows)
        self._appended = []
        for cache, rows in zip(self.caches, self.columns.drop(columns), strict=True):
            kept = cache.tentative - rows
            if kept >= 0:
                cache.commit(list(range(kept)))
            else:
                cache.truncate(cache.length + kept)

    def select(self, indices: list[int]) -> None:
        """Let request i continue what request `indices[i]` has."""
        self.settle()
        old, taken = self.caches, set[int]()
        self.caches = []
        for index in indices:
            self.caches.append(old[index].fork() if index in taken else old[index])
            taken.add(index)
        for index in set(range(len(old))) - taken:
            old[index].close()
        self.columns.select(indices)


def _floats(rows: torch.Tensor) -> Any:
    return rows.detach().float().contiguous().numpy()


class NativeLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of `Requests`: hands new keys on to the attention, which stores and reads them."""

    is_sliding = False
    is_croppable = True

    def __init__(self, requests: Requests, index: int) -> None:
        super().__init__()
        self.requests = requests
        self.index = index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate nothing: that is done with the first rows."""
        self.is_initialized = True

    def update(
        self, key_states: Any, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new keys and values, [B, G, T, D] each; the keys know their layer."""
        key_states.suffice_layer = self
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many columns attention sees for `query_length` tokens, and their offset."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Return the columns so far, padding included."""
        return self.requests.columns.count

    def get_max_length(self) -> int:
        """Return the most rows a request may hold."""
        return self.requests.limit


class NativeCache(Cache):  # type: ignore[misc]
    """A transformers `Cache` over `Requests`; `trace` says what the decode steps read."""

    def __init__(self, requests: Requests) -> None:
        super().__init__(layers=[NativeLayer(requests, i) for i in range(requests.layers)])
        self.requests = requests

    @property
    def trace(self) -> Trace | None:
        """What the decode steps read, None before the first pass."""
        return self.requests.trace

    @property
    def bytes(self) -> int:
        """Bytes of memory mapped for all requests."""
        return self.requests.bytes

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` columns.

        Raises:
            InputError: A positive number, or more columns than there are.
        """
        if not -self.requests.columns.count <= tokens_to_remove <= 0:
            raise InputError(
                f"crop({tokens_to_remove}): give a number from -{self.requests.columns.count} to 0"
            )
        self.requests.crop(-tokens_to_remove)

    def reset(self) -> None:
        """Forget all requests and give their memory back."""
        self.requests.reset()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let request i continue the rows of request `beam_idx[i]`."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the requests in `indices`, in that order."""
        self.requests.select(torch.arange(len(self.requests.caches))[indices].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each request `repeats` times."""
        count = len(self.requests.caches)
        self.requests.select([index for index in range(count) for _ in range(repeats)])
