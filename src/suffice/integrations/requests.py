"""A batch of requests of a transformers model: native caches, and attention to them.

Padding is never stored, so no technique can attend to it. The core is called once per layer for the
whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from suffice.attention.rule import coded_rules
from suffice.backends.cpu.attention import causal
from suffice.backends.cpu.rules import native_rule
from suffice.cache import Growth, alike
from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.decoder.key_rounding import KeyRounding
from suffice.engine.config import Config
from suffice.errors import InputError, unknown
from suffice.integrations.masks import Columns
from suffice.native import core
from suffice.policy import QueryObserver, Windows
from suffice.policy.full import Full
from suffice.trace import Trace, unaudited

_STORED = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
INTERRUPTED = "the last forward pass was interrupted: its cache must be reset, or another taken"
_SHOWN = 256  # queries of a prompt that a policy gets at a time


@dataclass(frozen=True)
class ServedSettings:
    """Settings that all caches of an enabled model share.

    `windows` are those of its layers, `limit` is the most tokens of a request. `rounding` is that
    of keys in 4 bits, None if it is not fitted.
    """

    config: Config
    windows: Windows
    growth: Growth
    limit: int
    rounding: KeyRounding | None = None

    @cached_property
    def native_rounding(self) -> Any:
        """The rounding as native caches take it."""
        return self.rounding and self.rounding.native


@dataclass(frozen=True)
class _Part:
    """Rows of some requests; `starts` tokens of their caches come before them."""

    caches: list[KVCache]
    starts: list[int]
    counts: list[int]

    @property
    def rows(self) -> int:
        return sum(self.counts)

    @cached_property
    def arrays(self) -> tuple[list[core.KVCache], np.ndarray, np.ndarray]:
        """The native caches, lengths and counts, as arguments of the core."""
        natives = [cache.native for cache in self.caches]
        return natives, np.array(self.starts, np.int32), np.array(self.counts, np.int32)

    @cached_property
    def visible(self) -> np.ndarray:
        """Which of a request's own rows each row sees: bit masks of itself and those before."""
        masks = [mask for count in self.counts for mask in causal(count)]
        return np.array(masks, np.int64).astype(np.int32)


class _Pass:
    """A forward pass over new rows of each request.

    If it is audited, `audits` has what the core found in each layer so far, [5, T, H].
    """

    def __init__(
        self,
        caches: list[KVCache],
        columns: int,
        rows: list[int],
        decodes: bool,
        audited: bool = False,
    ) -> None:
        self.columns = columns
        self.rows = rows
        self.decodes = decodes
        self.ended = False
        self.audits: list[np.ndarray] | None = [] if audited else None
        self.watches: list[QueryObserver | None] = []
        some = [(cache, count) for cache, count in zip(caches, rows, strict=True) if count]
        self.all = _Part([c for c, _ in some], [c.length for c, _ in some], [n for _, n in some])

    def steps(self) -> list[_Part]:
        """Return the rows, in their order, in parts small enough for decode steps."""
        if self.decodes:
            return [self.all] if self.all.rows else []
        return [
            _Part([cache], [length + first], [min(MAX_TENTATIVE, count - first)])
            for cache, length, count in zip(
                self.all.caches, self.all.starts, self.all.counts, strict=True
            )
            for first in range(0, count, MAX_TENTATIVE)
        ]


class Requests:
    """The caches of a batch of requests.

    Rows of a forward pass that `decodes` are tentative until the next pass, so refused drafts leave
    no trace in a technique's state. After a prompt the policy chooses.
    """

    def __init__(self, settings: ServedSettings) -> None:
        self.settings = settings
        self.policy = settings.config.policy
        self.layers = len(settings.windows)
        self.trace: Trace | None = None
        self.reset()

    def reset(self) -> None:
        """Drop all requests and free their memory."""
        self.caches: list[KVCache] = []
        self.columns = Columns()
        self._pass = _Pass([], 0, [], False)
        self._pass.ended = True

    @property
    def bytes(self) -> int:
        """Bytes of memory mapped for all requests."""
        return sum(cache.bytes for cache in self.caches)

    @property
    def attends(self) -> bool:
        """Whether the core computes attention in this pass: decode steps, or prompts if set so."""
        return self._pass.decodes or self.settings.config.softmax.prefill

    def begin(self, key: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Make room for a pass over T new columns; `key` [B, G, T, D] is that of the first layer.

        `mask` bool [B, 1, T, S + T] marks padding: a new column that does not see itself.

        Raises:
            InputError: More rows than the limit, another batch size, a type that cannot be
                stored, or tokens that continue evicted ones.
        """
        self.settle()
        batch, heads, count, size = key.shape
        decodes = self.columns.count > 0 and count <= MAX_TENTATIVE
        if self.columns.count and (not decodes or (count > 1 and self.policy.one_by_one)):
            self.settings.config.check_session()
        if not self.caches:
            self._open(batch, heads, size, key.dtype)
        if batch != len(self.caches):
            raise InputError(f"a batch of {batch}: the cache holds {len(self.caches)} requests")
        new = self.columns.add(batch, count, mask)
        every, steps = self.settings.config.audit, self.trace.steps if self.trace else 0
        audited = decodes and every is not None and steps % every == 0
        self._pass = now = _Pass(self.caches, count, new, decodes, audited)
        for cache, rows in zip(self.caches, now.rows, strict=True):
            cache.reserve(rows)
            if decodes:
                cache.draft(list(range(-1, rows - 1)))
            else:
                # Scores are multiplied by 1: the policy gets queries with their scale, per layer
                watch = self.policy.watch(cache, self.settings.windows, 1.0) if rows else None
                now.watches.append(watch)

    def _open(self, batch: int, heads: int, size: int, dtype: torch.dtype) -> None:
        if dtype not in _STORED:
            raise unknown("type of keys and values", str(dtype), map(str, _STORED))
        config = self.settings.config
        extras: dict[str, Any] = dict.fromkeys(self.policy.keeps, True)
        for _ in range(batch):
            cache = KVCache(
                alike(self.layers, heads, size),
                growth=self.settings.growth,
                limit=self.settings.limit,
                key_dtype=_STORED[dtype],
                value_dtype=_STORED[dtype],
                sketch=config.technique.sketched,
                bases=config.technique.based,
                rounding=self.settings.native_rounding,
                **extras,
            )
            self.policy.prepare(cache, self.settings.windows)
            self.caches.append(cache)
        rules = coded_rules(config.rules(self.layers, heads), config.levels())
        self._rules = [[native_rule(rule) for rule in layer] for layer in rules]
        self.trace = self.trace or Trace(self.layers, heads)
        self.trace.estimates = config.technique.estimates
        self.trace.confidence = config.technique.confidence

    def settle(self) -> None:
        """Commit the rows of the last decode step.

        Raises:
            InputError: The last pass did not reach the last layer.
        """
        self._check_ended()
        for cache in self.caches:
            self._commit(cache, cache.tentative)

    def _check_ended(self) -> None:
        if not self._pass.ended:
            raise InputError(INTERRUPTED)

    def _commit(self, cache: KVCache, rows: int) -> None:
        cache.commit(list(range(rows)))
        if rows:
            self.policy.after_step(cache)

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key, value [B, G, T, D] of a layer.

        Raises:
            InputError: Their shape differs from the first layer's.
        """
        heads, size = self.caches[0].heads(0), self.caches[0].size(0)
        shape = (len(self.caches), heads, key.shape[2], size)
        for name, rows in (("keys", key), ("values", value)):
            if tuple(rows.shape) != shape:
                raise InputError(
                    f"layer {layer} has {name} of shape {list(rows.shape)}: all layers must have "
                    f"{heads} heads of {size}"
                )
        new = self._pass.all
        if new.rows:
            natives, starts, counts = new.arrays
            pair = (self._rows(part).numpy() for part in (key, value))
            core.store_rows(natives, layer, starts, counts, *pair)

    def _rows(self, states: torch.Tensor) -> torch.Tensor:
        """Return the tokens among states [B, H, T, D], request after request, float32 [N, H, D]."""
        rows, added = states.detach().transpose(1, 2), self.columns.added
        rows = rows.flatten(0, 1) if added is None else rows[added]
        return rows.float().contiguous()

    def dense(self, layer: int, new: torch.Tensor, *, values: bool = False) -> torch.Tensor:
        """Return all keys, or values, of a layer as [B, G, S, D]; `new` are those of a prompt.

        Padding is zero.
        """
        if self.columns.count == new.shape[2]:
            return new
        batch, heads, _, size = new.shape
        dense = new.new_zeros(batch, heads, self.columns.count, size)
        for index, (cache, rows) in enumerate(zip(self.caches, self._pass.rows, strict=True)):
            load = cache.values if values else cache.keys
            found = torch.from_numpy(load(layer, cache.length + rows))
            dense[index][:, self.columns.held[index]] = found.to(dense.dtype)
        return dense

    def attend(
        self, layer: int, query: torch.Tensor, mask: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """Return the attention of query [B, H, T, D] as [B, T, H, D]; padding is 0.

        Decode steps use the technique, prompts only the softmax.

        Raises:
            InputError: Apart from padding, the mask is neither causal nor a sliding window.
        """
        now, window, trace = self._pass, self._window(layer, mask), self.trace
        assert trace is not None
        trace.group = query.shape[1] // trace.rows.shape[2]
        q = self._rows(query)
        found = torch.empty_like(q)
        reads = trace.rows if now.decodes else np.zeros_like(trace.rows)
        first = 0
        for part in now.steps():
            end = first + part.rows
            audit = None if now.audits is None else unaudited(1, part.rows, query.shape[1])[:, 0]
            natives, starts, counts = part.arrays
            read = core.attend_rows(
                natives,
                layer,
                starts,
                counts,
                q[first:end].numpy(),
                part.visible,
                scale,
                window or 0,
                found[first:end].numpy(),
                self._rules[layer],
                reads,
                audit,
            )
            if now.decodes:
                trace.add(read, steps=0)
            if now.audits is not None and audit is not None:
                now.audits.append(audit)
            first = end
        batch, heads, columns, size = query.shape
        if self.columns.added is None:
            return found.to(query.dtype).view(batch, columns, heads, size)
        output = query.new_zeros(batch, columns, heads, size)
        output[self.columns.added] = found.to(query.dtype)
        return output

    def _window(self, layer: int, mask: torch.Tensor | None) -> int | None:
        """Return the window of a mask; a policy's own bounds follow from the model's window."""
        window, own = self.columns.window(mask), self.settings.windows[layer]
        if window not in (None, own) and not isinstance(self.policy, Full):
            raise InputError(
                f"attention_mask shows layer {layer} a window of {window}: the policy needs that "
                f"of the model, {own}"
            )
        return window

    def end_layer(self, layer: int, query: torch.Tensor, scale: float) -> None:
        """Pass a prompt's query [B, H, T, D] to the policy; after the last layer let it choose."""
        now = self._pass
        for index, watch in enumerate(now.watches):
            if watch is None:
                continue
            q = scale * query[index].detach().float()
            q = q if self.columns.added is None else q[:, self.columns.added[index]]
            for first in range(0, q.shape[1], _SHOWN):
                part = q[:, first : first + _SHOWN]
                watch.add(layer, part.numpy(), self.caches[index].length + first + part.shape[1])
        if layer < self.layers - 1:
            return
        if not now.decodes:
            self._end_prompt()
        elif self.trace:
            self.trace.steps += 1
            if now.audits:
                self.trace.add_audit(np.stack(now.audits, 1))
        now.ended = True

    def _end_prompt(self) -> None:
        now = self._pass
        for cache, rows, watch in zip(self.caches, now.rows, now.watches, strict=True):
            cache.advance(rows)
            if rows:
                self.policy.after_prompt(cache, self.settings.windows, watch)

    def abandon(self) -> None:
        """Restore the caches after a pass that failed."""
        if not self._pass.ended:
            self.columns.drop(self._pass.columns)
            for cache in self.caches:
                cache.rollback()
            self._pass.ended = True

    def crop(self, columns: int) -> None:
        """Drop the last columns, and the state that a technique derived from tentative ones.

        Raises:
            InputError: Some tokens before them were evicted; nothing has changed then.
        """
        self._check_ended()
        pairs = list(zip(self.caches, self.columns.lost(columns), strict=True))
        for cache, rows in pairs:
            if rows > cache.tentative:
                cache.check_truncate(cache.length + cache.tentative - rows)
        self.columns.drop(columns)
        for cache, rows in pairs:
            if rows > cache.tentative:
                cache.truncate(cache.length + cache.tentative - rows)
            else:
                self._commit(cache, cache.tentative - rows)

    def select(self, indices: list[int]) -> None:
        """Let request i continue the rows of request `indices[i]`."""
        self.settle()
        old, taken = self.caches, set[int]()
        self.caches = []
        for index in indices:
            self.caches.append(old[index].fork() if index in taken else old[index])
            taken.add(index)
        for index in set(range(len(old))) - taken:
            old[index].close()
        self.columns.select(indices)
