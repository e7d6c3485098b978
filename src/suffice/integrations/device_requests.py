"""The caches of a batch whose model is on a GPU, as `Requests` are of one on the CPU.

Keys and values of a layer are two tensors with as many rows as the growth policy says, and each
request's rows lie at their start, without padding. Decode steps run the kernels of
`suffice.backends.triton`. Rows of a step count at once: refused drafts are cropped. After a prompt
the policy chooses.

The host knows how many rows there are, and asks the device for nothing in a decode step without
padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.attention.rule import READ_ALL
from suffice.backends.triton.attend import check_size
from suffice.backends.triton.audit import audited
from suffice.backends.triton.bases import Rounding
from suffice.backends.triton.call import Reads, Tokens
from suffice.backends.triton.rules import HeadRules, check_rule
from suffice.cache.kv import MAX_TENTATIVE
from suffice.engine.config import Config
from suffice.errors import InputError
from suffice.integrations.device_layer import DeviceLayer
from suffice.integrations.device_policy import ObservedThere, RequestRows, check_policy
from suffice.integrations.masks import Columns
from suffice.integrations.requests import INTERRUPTED, ServedSettings
from suffice.trace import Audit, BoundSums, Trace


def check_device(config: Config, size: int) -> None:
    """Refuse what only models on the CPU have; `size` is that of the model's heads.

    Raises:
        InputError: A technique, an option or a size without a kernel for GPUs.
    """
    check_size(size)
    name, softmax = ATTENTIONS.name_of(config.technique), SOFTMAXES.name_of(config.softmax)
    rule = config.technique.rule() or READ_ALL
    check_rule(rule)
    check_policy(config.policy, "read_all" if rule.exact else rule.kind)
    if config.softmax.coded and not (rule.exact or rule.kind == "read_all"):
        raise InputError(
            f"softmax '{softmax}' with attention '{name}' on a GPU: the attention must be 'exact'"
        )
    if config.softmax.prefill:
        raise InputError(f"softmax={softmax}:prefill=true on a GPU: must be left out")


class DeviceRequests:
    """The caches of a batch of requests on a GPU."""

    def __init__(self, settings: ServedSettings) -> None:
        self.settings = settings
        self.layers = len(settings.windows)
        self.policy = settings.config.policy
        self.version = 0  # of the memory; graphs of another one read what is not there
        self.reset()

    def reset(self) -> None:
        """Drop all requests and free their memory."""
        self.version += 1
        self.columns = Columns()
        self._held: list[DeviceLayer] = []
        self._texts: list[int] = []  # tokens of each request
        self._new: list[int] = []  # of this pass
        self._added = 0  # columns of this pass
        self._tokens: dict[tuple[int, int | None], Tokens] = {}  # of this pass, by what they see
        self._watches: list[ObservedThere | None] = []
        self._decodes, self._ended = False, True
        self._admitted = False  # whether this pass is recorded, or replayed
        self._places: dict[int, torch.Tensor] = {}  # by columns: the ranks without padding
        self._audits: list[torch.Tensor] | None = None  # of this pass, if it is audited
        self._steps = 0
        self.audit: Audit | None = None

    @property
    def caches(self) -> range:
        """The numbers of the requests."""
        return range(len(self._texts))

    @property
    def bytes(self) -> int:
        """Bytes of memory for all requests."""
        return sum(layer.bytes for layer in self._held)

    @property
    def attends(self) -> bool:
        """Whether the kernels compute attention in this pass: decode steps."""
        return self._decodes

    @property
    def trace(self) -> Trace | None:
        """Reads of the decode steps so far; None before the first pass. Waits for the device."""
        if not self._held:
            return None
        keys, technique = self._held[0].keys, self.settings.config.technique
        trace = Trace(self.layers, keys.shape[1], self._group)
        trace.steps, trace.estimates = self._steps, technique.estimates
        trace.rows[:3], trace.rows[4] = self._counts[:3].cpu(), self._counts[3].cpu()
        (trace.missing, trace.shift), sums = self._bounds.tolist()
        trace.bounds = BoundSums(int(self._bounded), *sums)
        trace.sketch_bytes_read = int(trace.rows[4].sum())
        rows = int(trace.rows[:2].sum()) * keys.shape[-1] * keys.element_size()
        trace.kv_bytes_read = rows + trace.sketch_bytes_read
        trace.audit = None if self.audit is None else self.audit.copy()
        return trace

    def begin(self, key: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Make room for a pass over T new columns; see `Requests.begin`.

        Raises:
            InputError: More rows than the limit, another type or batch size, several tokens at once
                with a technique that keeps state, or tokens that continue evicted ones.
        """
        if self._admitted:  # what is recorded asks for nothing from the host
            return
        if not self._ended:
            raise InputError(INTERRUPTED)
        batch, count = key.shape[0], key.shape[2]
        if self._held and key.dtype != self._held[0].keys.dtype:
            raise InputError(
                f"keys are {key.dtype}: the cache holds {self._held[0].keys.dtype}: begin with "
                "enabled.new_cache()"
            )
        self._check_pass(batch, count)
        if not self._held:
            self._open(key)
        self._admit(batch, count, mask)
        self._ranks = self._ranked(key.device)
        if not self._decodes:
            self._watches = [self._watch(at) for at in self.caches]

    def _admit(self, batch: int, count: int, mask: torch.Tensor | None) -> None:
        self._new = self.columns.add(batch, count, mask)
        self._added, self._tokens = count, {}
        try:
            self._reserve()
        except BaseException:
            self.columns.drop(count)
            raise
        self._audits = [] if self._decodes and self._audited else None
        self._ended = False

    @property
    def _audited(self) -> bool:
        """Whether the next decode step is audited."""
        every = self.settings.config.audit
        return every is not None and self._steps % every == 0

    def can_replay(self, batch: int) -> bool:
        """Return whether a step of one token of each request needs nothing new from the host."""
        if batch != len(self._texts) or not self._ended or self._audited:
            return False
        fits = max(self._texts) < self.settings.limit
        return fits and all(layer.fits([1] * batch) for layer in self._held)

    def admit_step(self) -> None:
        """Begin a step of one token of each request that is recorded or replayed.

        `can_replay` has said so. `end_layer`, or `commit` after a replay, ends it.
        """
        self._check_pass(len(self._texts), 1)
        self._admit(len(self._texts), 1, None)
        self._ranks, self._admitted = self._ranked(self._text.device), True

    def _check_pass(self, batch: int, count: int) -> None:
        self._decodes = self.columns.count > 0 and count <= MAX_TENTATIVE
        if self.columns.count and (not self._decodes or (count > 1 and self.policy.one_by_one)):
            self.settings.config.check_session()
        if self._decodes and count > 1 and not self.settings.config.technique.stateless:
            raise InputError(
                f"{count} tokens in a step with attention 'aet', whose state cannot be undone on a "
                "GPU: must be one: drafts need another attention"
            )
        if self._texts and batch != len(self._texts):
            raise InputError(f"a batch of {batch}: the cache holds {len(self._texts)} requests")

    def _open(self, key: torch.Tensor) -> None:
        batch, heads, _, _ = key.shape
        config, device = self.settings.config, key.device
        self._texts, self._group = [0] * batch, 1
        self._text = torch.zeros(batch, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(self.layers, batch, dtype=torch.int32, device=device)
        self._counts = torch.zeros(4, self.layers, heads, dtype=torch.int64, device=device)
        # The largest `missing` and `shift`, and their sums; of how many softmaxes.
        self._bounds = torch.zeros(2, 2, dtype=torch.float64, device=device)
        self._bounded = torch.zeros((), dtype=torch.int64, device=device)
        boxed = "boxes" in self.policy.keeps
        fitted = self.settings.rounding
        for at, rules in enumerate(config.rules(self.layers, heads)):
            rounding = fitted and Rounding.of([part[at] for part in fitted], device)
            own, lengths = HeadRules.of(rules, device), self._lengths[at]
            self._held.append(DeviceLayer(key, own, lengths, boxed=boxed, rounding=rounding))
        for layer, levels in zip(self._held, config.levels(), strict=False):
            layer.weigh_by(levels)
        for request in range(batch):
            self.policy.prepare(self._rows_of(request), self.settings.windows)  # type: ignore[arg-type]

    def _rows_of(self, request: int) -> RequestRows:
        return RequestRows(self._held, self.settings.windows, request, self._texts[request])

    def _watch(self, request: int) -> ObservedThere | None:
        # Scores are multiplied by 1: the policy gets queries with their scale.
        given = self.policy.watch(self._rows_of(request), self.settings.windows, 1.0)  # type: ignore[arg-type]
        return None if given is None else ObservedThere(given.rows, 1.0)  # type: ignore[attr-defined]

    def _reserve(self) -> None:
        needed = max(a + b for a, b in zip(self._texts, self._new, strict=True))
        if needed > self.settings.limit:
            raise InputError(f"{needed} tokens exceed the context length of {self.settings.limit}")
        for layer in self._held:
            layer.turns = self._decodes
            if not layer.fits(self._new):
                layer.reserve(self._new, self.settings.growth, self.settings.limit)
                self.version += 1

    def _ranked(self, device: torch.device) -> torch.Tensor:
        """Return which of its request's new tokens each column has, from 1; 0: padding."""
        added = self.columns.added
        if added is None:
            if self._added not in self._places:  # kept, because graphs read them
                place = torch.arange(1, self._added + 1, dtype=torch.int32, device=device)
                self._places[self._added] = place.expand(len(self._texts), -1).contiguous()
            return self._places[self._added]
        added = added.to(device)
        return added.cumsum(1).to(torch.int32) * added

    def store(self, index: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key, value [B, G, T, D] of a layer."""
        self._held[index].store(key.detach(), value.detach(), self._ranks)

    def dense(self, index: int, new: torch.Tensor, *, values: bool = False) -> torch.Tensor:
        """Return all keys, or values, of a layer as [B, G, S, D]; `new` are those of a prompt."""
        if self.columns.count == new.shape[2]:
            return new
        layer = self._held[index]
        held = layer.values if values else layer.keys
        batch, heads, _, size = new.shape
        dense = new.new_zeros(batch, heads, self.columns.count, size)
        for at, (start, count) in enumerate(zip(layer.rows, self._new, strict=True)):
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
        layer, window = self._held[index], self.settings.windows[index]
        if not self._admitted:
            window = self.columns.window(mask)
        self._group = query.shape[1] // layer.keys.shape[1]
        # Without a policy all layers hold the same rows.
        known = (index if self.policy.chooses else 0), window
        if known not in self._tokens:
            self._tokens[known] = layer.tokens(self._ranks, window)
        tokens = self._tokens[known]
        q = query.detach().transpose(1, 2).flatten(0, 1).contiguous()
        found, reads = layer.attend(q, tokens, scale)
        self._count(index, reads)
        if self._audits is not None:
            exact = layer.attend_exactly(q, tokens, scale)
            coded = layer.tables is not None
            self._audits.append(audited(reads, exact, coded=coded))
        return found.view(query.shape[0], query.shape[2], *found.shape[1:])

    def _count(self, index: int, reads: Reads) -> None:
        seen = torch.where(self._ranks > 0, self._text[:, None] + self._ranks, 0).view(-1, 1)
        every = seen.expand_as(reads.keys)
        sketched = torch.zeros_like(every) if reads.sketched is None else reads.sketched
        counts = torch.stack((reads.keys, reads.values, every, sketched))
        self._counts[:, index] += counts.sum(1)
        if reads.missing is not None:
            shift = torch.zeros_like(reads.missing) if reads.shift is None else reads.shift
            bounds = torch.stack((reads.missing, shift)).where(seen > 0, 0).double().flatten(1)
            self._bounds[0] = torch.maximum(self._bounds[0], bounds.amax(1))
            self._bounds[1] += bounds.clamp(max=2).sum(1)  # no `missing` is above 1
            self._bounded += (seen > 0).expand_as(reads.missing).sum()

    def end_layer(self, index: int, query: torch.Tensor, scale: float) -> None:
        """Note that a layer has ended; after the last one the new rows count."""
        for at, watch in enumerate(self._watches):
            if watch is not None and not self._decodes:
                q = scale * query[at].detach().float()
                q = q if self.columns.added is None else q[:, self.columns.added[at]]
                watch.add(index, q, self._texts[at] + q.shape[1])
        if index < self.layers - 1:
            return
        new = self._ranks.amax(1)
        self._lengths += new
        self._text += new
        self.commit()
        if not self._decodes:
            self._choose()
        if self._audits:
            self._add_audit(torch.stack(self._audits, 1))

    def commit(self) -> None:
        """Count the rows of a pass whose lengths have been advanced."""
        self._texts = [a + b for a, b in zip(self._texts, self._new, strict=True)]
        for layer in self._held:
            layer.commit(self._new)
        self._ended, self._admitted = True, False
        self._steps += self._decodes

    def _choose(self) -> None:
        """Let the policy choose after a prompt."""
        for at, (watch, new) in enumerate(zip(self._watches, self._new, strict=True)):
            if new:
                rows = self._rows_of(at)
                self.policy.after_prompt(rows, self.settings.windows, watch)  # type: ignore[arg-type]
        self._watches = []
        if self.policy.evicts:
            self.version += 1
            for layer in self._held:
                layer.shrink(self.settings.growth, self.settings.limit)

    def _add_audit(self, found: torch.Tensor) -> None:
        """Note the figures [5, L, N, H] of an audited step; waits for the device."""
        figures: np.ndarray = found.cpu().numpy()
        if self.columns.added is not None:
            figures = figures[:, :, self.columns.added.flatten().numpy()]
        if self.audit is None:
            self.audit = Audit(self.layers, figures.shape[-1])
        self.audit.add(figures)

    def settle(self) -> None:
        """Do nothing: rows count once their pass has ended."""

    def abandon(self) -> None:
        """Forget the rows of a pass that failed."""
        if not self._ended:
            self.columns.drop(self._added)
            self._truncate([0] * len(self._texts))
            self._ended, self._admitted = True, False

    def crop(self, columns: int) -> None:
        """Drop the last columns.

        Raises:
            InputError: A technique keeps state, which cannot be undone; or a policy has evicted.
        """
        config = self.settings.config
        if columns and not config.technique.stateless:
            raise InputError("crop: attention 'aet' keeps a state that cannot be undone on a GPU")
        if columns and config.policy.evicts:
            raise InputError("crop: a policy that evicts cannot be undone on a GPU")
        lost = self.columns.lost(columns)
        self.columns.drop(columns)
        self._texts = [a - b for a, b in zip(self._texts, lost, strict=True)]
        self._truncate(lost)

    def _truncate(self, lost: Sequence[int]) -> None:
        if self._held:
            self._text.copy_(torch.tensor(self._texts, dtype=torch.int32))
        for layer in self._held:
            layer.truncate(lost)

    def select(self, indices: list[int]) -> None:
        """Let request i continue the rows of request `indices[i]`."""
        self._texts = [self._texts[at] for at in indices]
        self.columns.select(indices)
        self.version += 1
        self._places = {}
        if self._held:
            self._lengths, self._text = self._lengths[:, indices], self._text[indices]
        for layer, lengths in zip(self._held, self._lengths, strict=True):
            layer.select(indices, lengths)
