"""The caches of a batch whose model is on a GPU, as `Requests` are of one on the CPU.

Keys and values of a layer are two tensors with as many rows as the growth policy says, and each
request's rows lie at their start, without padding. Decode steps run the kernels of
`suffice.backends.triton`. Rows of a step count at once: refused drafts are cropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.attention.rule import READ_ALL, AttentionRule
from suffice.backends.triton.aet_sets import AetSet
from suffice.backends.triton.attend import KINDS, attend, check_rule
from suffice.backends.triton.call import Held, Tokens
from suffice.backends.triton.coded import Tables, ValueSums
from suffice.backends.triton.sketches import Sketches
from suffice.cache import next_capacity
from suffice.cache.kv import MAX_TENTATIVE
from suffice.engine.config import Config
from suffice.errors import InputError
from suffice.integrations.growing_cache import grown
from suffice.integrations.masks import Columns
from suffice.integrations.requests import INTERRUPTED, ServedSettings
from suffice.policy.full import Full
from suffice.trace import Trace


def check_device(config: Config) -> None:
    """Refuse what only models on the CPU have.

    Raises:
        InputError: A technique or an option without a kernel for GPUs.
    """
    name, softmax = ATTENTIONS.name_of(config.technique), SOFTMAXES.name_of(config.softmax)
    rule = config.technique.rule() or READ_ALL
    if rule.kind not in KINDS:
        raise InputError(f"attention '{name}' on a GPU: must be {', '.join(_names())}")
    check_rule(rule)
    if not isinstance(config.policy, Full):
        raise InputError("a policy on a GPU: must be 'full'")
    if config.softmax.coded and rule.kind != "read_all":
        raise InputError(
            f"softmax '{softmax}' with attention '{name}' on a GPU: the attention must be 'exact'"
        )
    if config.softmax.prefill:
        raise InputError(f"softmax={softmax}:prefill=true on a GPU: must be left out")
    if config.audit is not None:
        raise InputError(f"audit={config.audit} on a GPU: must be left out")
    if config.attention.calibrated:
        raise InputError(f"attention={name}:calibrated on a GPU: must be left out")


def _names() -> list[str]:
    return sorted({"exact", *(kind for kind in KINDS if kind != "read_all")})


@dataclass
class _Layer:
    """One layer's keys and values [B, G, C, D], and what its technique keeps."""

    keys: torch.Tensor
    values: torch.Tensor
    sets: list[AetSet] = field(default_factory=list)
    sketches: Sketches | None = None
    tables: Tables | None = None
    value_sums: ValueSums | None = None


class DeviceRequests:
    """The caches of a batch of requests on a GPU."""

    def __init__(self, settings: ServedSettings) -> None:
        self.settings = settings
        self.layers = len(settings.windows)
        self._rule: AttentionRule = settings.config.technique.rule() or READ_ALL
        self.reset()

    def reset(self) -> None:
        """Drop all requests and free their memory."""
        self.columns = Columns()
        self._held: list[_Layer] = []
        self._lengths: list[int] = []
        self._new: list[int] = []  # tokens of this pass
        self._added = 0  # columns of this pass
        self._place: torch.Tensor | None = None  # bool [B, T]: those with a token; None: all
        self._tokens: dict[int | None, Tokens] = {}  # of this pass, by what they see
        self._decodes, self._ended = False, True
        self._counts = self._missing = torch.zeros(0)
        self._steps = 0

    @property
    def caches(self) -> range:
        """The numbers of the requests."""
        return range(len(self._lengths))

    @property
    def bytes(self) -> int:
        """Bytes of memory for all requests."""
        return sum(x.nbytes for layer in self._held for x in (layer.keys, layer.values))

    @property
    def attends(self) -> bool:
        """Whether the kernels compute attention in this pass: decode steps."""
        return self._decodes

    @property
    def trace(self) -> Trace | None:
        """Reads of the decode steps so far; None before the first pass. Waits for the device."""
        if not self._held:
            return None
        keys = self._held[0].keys
        trace = Trace(self.layers, keys.shape[1])
        trace.steps, trace.missing = self._steps, float(self._missing)
        trace.rows[:3] = self._counts.cpu().numpy()
        trace.kv_bytes_read = int(trace.rows[:2].sum()) * keys.shape[-1] * keys.element_size()
        return trace

    def begin(self, key: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Make room for a pass over T new columns; see `Requests.begin`.

        Raises:
            InputError: More rows than the limit, another batch size, or several tokens at once
                with a technique that keeps state.
        """
        if not self._ended:
            raise InputError(INTERRUPTED)
        batch, heads, count, size = key.shape
        self._decodes = self.columns.count > 0 and count <= MAX_TENTATIVE
        if self._decodes and count > 1 and not self.settings.config.technique.stateless:
            raise InputError(
                f"{count} tokens in a step with attention 'aet', whose state cannot be undone on a "
                "GPU: give one at a time, or another attention"
            )
        if self._lengths and batch != len(self._lengths):
            raise InputError(f"a batch of {batch}: the cache holds {len(self._lengths)} requests")
        if not self._held:
            self._open(batch, heads, size, key)
        self._new = self.columns.add(batch, count, mask)
        self._added, self._tokens = count, {}
        added = self.columns.added
        self._place = None if added is None else added.to(key.device)
        needed = max(a + b for a, b in zip(self._lengths, self._new, strict=True))
        try:
            self._reserve(needed)
        except BaseException:
            self.columns.drop(count)
            raise
        self._ended = False

    def _open(self, batch: int, heads: int, size: int, key: torch.Tensor) -> None:
        self._lengths = [0] * batch
        self._counts = torch.zeros(3, self.layers, heads, dtype=torch.int64, device=key.device)
        self._missing = torch.zeros((), device=key.device)
        for _ in range(self.layers):
            empty = key.new_empty(batch, heads, 0, size)
            layer = _Layer(empty, empty.clone())
            if self._rule.kind == "aet":
                layer.sets = [
                    AetSet(self._rule.parameters, heads, key.device) for _ in range(batch)
                ]
            if self.settings.config.technique.sketched:
                layer.sketches = Sketches(batch, heads, size, 0, key.device)
            self._held.append(layer)
        for layer, levels in zip(self._held, self.settings.config.levels(), strict=False):
            layer.tables = Tables.of(levels, key.device)
            layer.value_sums = ValueSums(batch, heads, size, key.device)

    def _reserve(self, needed: int) -> None:
        capacity, limit = self._held[-1].keys.shape[2], self.settings.limit  # it grows last
        if needed > limit:
            raise InputError(f"{needed} tokens exceed the context length of {limit}")
        if needed <= capacity:
            return
        capacity = next_capacity(self.settings.growth, needed, capacity, limit)
        used = max(self._lengths)
        for layer in self._held:
            if layer.sketches is not None:
                layer.sketches.reserve(capacity)
            layer.keys, layer.values = (
                grown(rows, used, capacity) for rows in (layer.keys, layer.values)
            )

    def store(self, index: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key, value [B, G, T, D] of a layer."""
        layer, added, start = self._held[index], self._place, self._lengths[0]
        for held, new in ((layer.keys, key), (layer.values, value)):
            if added is None and len(set(self._lengths)) == 1:
                held[:, :, start : start + new.shape[2]] = new
                continue
            for at, (first, count) in enumerate(zip(self._lengths, self._new, strict=True)):
                rows = new[at] if added is None else new[at][:, added[at]]
                held[at, :, first : first + count] = rows

    def dense(self, index: int, new: torch.Tensor, *, values: bool = False) -> torch.Tensor:
        """Return all keys, or values, of a layer as [B, G, S, D]; `new` are those of a prompt."""
        if self.columns.count == new.shape[2]:
            return new
        layer = self._held[index]
        held = layer.values if values else layer.keys
        batch, heads, _, size = new.shape
        dense = new.new_zeros(batch, heads, self.columns.count, size)
        for at, (start, count) in enumerate(zip(self._lengths, self._new, strict=True)):
            place = self.columns.held[at].to(new.device)
            dense[at][:, place] = held[at, :, : start + count]
        return dense

    def attend(
        self, index: int, query: torch.Tensor, mask: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """Return the attention of query [B, H, T, D] as [B, T, H, D]; padding is 0.

        Raises:
            InputError: Apart from padding, the mask is neither causal nor a sliding window.
        """
        layer, window = self._held[index], self.columns.window(mask)
        if window not in self._tokens:
            self._tokens[window] = self._tokens_within(window, query.device)
        tokens, added = self._tokens[window], self._place
        rows = query.transpose(1, 2)
        q = rows.flatten(0, 1) if added is None else rows[added]
        held = Held(layer.keys, layer.values)
        options: dict[str, Any] = {"tables": layer.tables, "value_sums": layer.value_sums}
        if layer.sets:
            pairs = zip(layer.sets, self._new, strict=True)
            options["sets"] = [each for each, count in pairs for _ in range(count)]
        if layer.sketches is not None:
            ends = [a + b for a, b in zip(self._lengths, self._new, strict=True)]
            layer.sketches.extend(held, ends)
            options["sketches"] = layer.sketches
        found, reads = attend(self._rule, q.contiguous(), held, tokens, scale=scale, **options)
        every = tokens.length[:, None].expand_as(reads.keys)
        counts = torch.stack([each.sum(0) for each in (reads.keys, reads.values, every)])
        self._counts[:, index] += counts
        if reads.missing is not None:
            self._missing = torch.maximum(self._missing, reads.missing.max())
        if added is None:
            return found.view(*rows.shape)
        output = rows.new_zeros(rows.shape)
        output[added] = found
        return output

    def _tokens_within(self, window: int | None, device: torch.device) -> Tokens:
        """Return the tokens of this pass, which see the last `window` rows, or all."""
        owners: list[int] = []
        firsts: list[int] = []
        lengths: list[int] = []
        for at, (start, count) in enumerate(zip(self._lengths, self._new, strict=True)):
            own = range(start + 1, start + count + 1)
            owners += [at] * count
            lengths += own
            firsts += [max(length - window, 0) if window else 0 for length in own]
        owner, first, length = (
            torch.tensor(each, dtype=torch.int32, device=device)
            for each in (owners, firsts, lengths)
        )
        return Tokens(owner, first, length, firsts, lengths)

    def end_layer(self, index: int, query: torch.Tensor, scale: float) -> None:
        """Note that a layer has ended; after the last one the new rows count."""
        if index < self.layers - 1:
            return
        self._lengths = [a + b for a, b in zip(self._lengths, self._new, strict=True)]
        self._new, self._ended = [0] * len(self._lengths), True
        self._steps += self._decodes

    def settle(self) -> None:
        """Do nothing: rows count once their pass has ended."""

    def abandon(self) -> None:
        """Forget the rows of a pass that failed."""
        if not self._ended:
            self.columns.drop(self._added)
            self._new, self._ended = [0] * len(self._lengths), True

    def crop(self, columns: int) -> None:
        """Drop the last columns.

        Raises:
            InputError: A technique keeps state, which cannot be undone.
        """
        if columns and not self.settings.config.technique.stateless:
            raise InputError("crop: attention 'aet' keeps a state that cannot be undone on a GPU")
        lost = self.columns.lost(columns)
        self.columns.drop(columns)
        self._lengths = [a - b for a, b in zip(self._lengths, lost, strict=True)]
        for layer in self._held:
            if layer.sketches is not None:
                layer.sketches.truncate(self._lengths)
            if layer.value_sums is not None:
                lengths = torch.tensor(self._lengths, dtype=torch.int32, device=layer.keys.device)
                layer.value_sums.truncate(Held(layer.keys, layer.values), lengths)

    def select(self, indices: list[int]) -> None:
        """Let request i continue the rows of request `indices[i]`."""
        for layer in self._held:
            layer.keys, layer.values = layer.keys[indices], layer.values[indices]
            layer.sets = [layer.sets[at].copy() for at in indices] if layer.sets else []
            if layer.sketches is not None:
                layer.sketches.select(indices)
            if layer.value_sums is not None:
                layer.value_sums.select(torch.tensor(indices, device=layer.keys.device))
        self._lengths = [self._lengths[at] for at in indices]
        self.columns.select(indices)
