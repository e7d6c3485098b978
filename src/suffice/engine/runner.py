"""Runs the model: decode steps in native code, prefill in chunks by it or by PyTorch."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from suffice.attention.rule import AttentionRule
from suffice.cache import fits_keys, machine, row_bytes, types_of, with_defaults
from suffice.cache.kv import KVCache
from suffice.engine.config import Config
from suffice.engine.torch_threads import one_torch_thread
from suffice.errors import OutOfMemory, SufficeWarning
from suffice.models.decoder import Decoder
from suffice.models.key_rounding import key_rounding
from suffice.models.native_model import NativeModel, StepRows
from suffice.native import core
from suffice.policy import QueryObserver
from suffice.speculate import DraftingSample, Proposer, Tree
from suffice.speculate.none import NoDrafts
from suffice.trace import Trace

# Prompts, or what is left of them, of at most this many tokens go through the native step, by the
# type of PyTorch's products. Where these are float32 the native ones are as fast (in int8 twice to
# three times as fast), and PyTorch must unpack every weight first. Where the CPU multiplies tiles
# of bfloat16 PyTorch is several times faster, and only short prompts are not worth unpacking for.
NATIVE_PREFILL = {torch.float32: sys.maxsize, torch.bfloat16: 64}
Outputs = Literal["none", "last", "all"]  # whose logits are wanted
Chunk = Callable[[KVCache, list[int], Outputs, QueryObserver | None], torch.Tensor]
NATIVE_ROWS = 30  # of a native step at most: whole tiles of AVX2's 6 rows that share a weight


@dataclass(eq=False)
class Sequence:
    """A request as the runner knows it: its cache."""

    request_id: str
    cache: KVCache


class Runner:
    """A model with the memory of its requests.

    `trace` sums what all decode steps read. Every `audit`-th of them is audited; None: none is.
    `sample` makes tokens of a text, on which the model's keys are looked at if need be. `stored_as`
    says how the model's file stores its matrices, such as Q4_1, "" if there is no file. `proposer`
    makes no drafts until `engine.load`, which can load the models that draft, sets another.
    """

    def __init__(
        self, config: Config, decoder: Decoder, sample: Callable[[], list[int]] = list
    ) -> None:
        assert config.max_model_len is not None, "the config must be resolved"
        self.config = config
        self.decoder = decoder
        self.sample = sample
        model = decoder.config
        self.trace = Trace(len(model.layers), model.kv_heads, model.heads // model.kv_heads)
        self.trace.plain_row_bytes = row_bytes(config.dtype, model.head_size)
        self.stored_as = ""
        self._calibrated_tokens = config.calibrated_tokens
        self.audit = config.audit
        self.arena = core.Arena(config.kv_cache_bytes or 0)
        self.windows = [layer.window for layer in decoder.config.layers]
        rules = config.rules(len(model.layers), model.kv_heads)
        self._native = NativeModel(decoder, config.max_model_len, rules, config.levels())
        self._rounding = None
        if fits_keys(types_of(config.kv_cache_dtype)[0]):
            with one_torch_thread():
                self._rounding = key_rounding(self._native, model, config.max_model_len, sample())
        self.growth = machine.fitted_to_kernel(config.growth)
        self.proposer: Proposer = NoDrafts()

    def use(self, rules: list[list[AttentionRule | None]]) -> None:
        """Attend by other rules, [L][G], than those of the config from now on."""
        self._native.use(rules)

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        return self.decoder.config.vocab

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        parts = self.decoder.weights.values()
        return sum(p.nbytes if isinstance(p, torch.Tensor) else p.bytes for p in parts)

    @property
    def longest_prompt(self) -> int:
        """The most tokens that the model takes as a prompt."""
        return self.decoder.config.longest_prompt

    @property
    def context(self) -> int:
        """The most tokens of a sequence."""
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    def open(self, request_id: str, limit: int) -> Sequence:
        """Return a new, empty sequence that may grow to `limit` rows."""
        model = self.decoder.config
        keys, values = types_of(self.config.kv_cache_dtype)
        cache = KVCache(
            len(model.layers),
            model.kv_heads,
            model.head_size,
            growth=self.growth,
            limit=limit,
            key_dtype=keys,
            value_dtype=values,
            arena=self.arena,
            sketch=self.config.attention.sketched or self.config.speculative_config.sketched,
            rounding=self._rounding,
            **dict.fromkeys(self.config.policy.keeps, True),
        )
        self.config.policy.prepare(cache, self.windows)
        return Sequence(request_id, cache)

    def prefill(self, sequence: Sequence, tokens: list[int]) -> torch.Tensor:
        """Run tokens after those the cache holds; return the last one's logits, float32 [V].

        Every token sees all before it; then the policy chooses.

        Raises:
            OutOfMemory: The sequence is good for nothing but `close` then.
        """
        cache, policy = sequence.cache, self.config.policy
        self._watch_length(cache.length + len(tokens))
        cache.reserve(len(tokens))
        watch = policy.watch(cache, self.windows, self.decoder.config.attention_scale)
        run, size = self._prompt_runner(len(tokens))
        last = (len(tokens) - 1) // size * size
        for start in range(0, last, size):
            run(cache, tokens[start : start + size], "none", watch)
        logits = run(cache, tokens[last:], "last", watch)[0]
        policy.after_prompt(cache, self.windows, watch)
        return logits

    def prefill_all(self, sequence: Sequence, tokens: list[int]) -> Iterator[torch.Tensor]:
        """Run tokens as `prefill` does, but yield the logits of all, chunk by chunk, [T, V].

        Raises:
            OutOfMemory: The sequence is good for nothing but `close` then.
        """
        sequence.cache.reserve(len(tokens))
        run, size = self._prompt_runner(len(tokens))
        for start in range(0, len(tokens), size):
            yield run(sequence.cache, tokens[start : start + size], "all", None)

    def _prompt_runner(self, count: int) -> tuple[Chunk, int]:
        """Return what runs chunks of a prompt of `count` tokens, and how long chunks may be."""
        if self.config.softmax.prefill or count <= NATIVE_PREFILL[self.decoder.dtype]:
            return self._chunk_by_step, min(NATIVE_ROWS, self.config.prefill_chunk)
        return self._chunk_by_torch, self.config.prefill_chunk

    def _chunk_by_torch(
        self, cache: KVCache, tokens: list[int], outputs: Outputs, watch: QueryObserver | None
    ) -> torch.Tensor:
        seen = _shown(watch, cache.length + len(tokens))
        logits = self.decoder.forward(torch.tensor(tokens), cache, logits=outputs, watch=seen)
        return torch.empty(0) if logits is None else logits.reshape(-1, self.vocabulary)

    def _chunk_by_step(
        self, cache: KVCache, tokens: list[int], outputs: Outputs, watch: QueryObserver | None
    ) -> torch.Tensor:
        seen = _shown(watch, cache.length + len(tokens))
        with one_torch_thread():  # a policy looks at queries between two steps
            logits = self._native.step(
                [StepRows(cache, tokens, outputs=outputs)],
                exact=not self.config.softmax.prefill,
                watch=seen,
            )
        cache.commit(list(range(len(tokens))))
        return logits

    @property
    def most_drafts(self) -> int:
        """The most tokens that are drafted for a step; 0: none ever."""
        return self.config.speculative_config.num_speculative_tokens

    def reserve(
        self, sequence: Sequence, rows: int = 1, drafts: int = 0, tokens_per_step: float = 1.0
    ) -> int:
        """Make sure that more tokens fit; return how many of `drafts` drafts fit behind them.

        Drafts take rows that are spare anyway, or that are allocated with one that is needed now:
        their number is cut rather than have the cache grow before it must (BMC, VI-A). By how much
        it grows then follows from `tokens_per_step`, those that a step has given so far (Eq. 9).

        Raises:
            OutOfMemory: Nothing has changed then.
        """
        cache = sequence.cache
        self._watch_length(cache.length + rows)
        drafts = min(drafts, self._draftable(cache) - rows)
        if cache.spare < rows:
            cache.growth = with_defaults(self.growth, accepted=tokens_per_step)
            self._grow(cache, rows, drafts)
        return max(min(drafts, cache.room(rows + drafts) - rows), 0)

    def _watch_length(self, tokens: int) -> None:
        """Warn, once, of a context that is longer than what the calibration saw."""
        if self._calibrated_tokens is not None and tokens > self._calibrated_tokens:
            warnings.warn(
                f"the context is longer than the {self._calibrated_tokens} tokens that the "
                "calibration saw: beyond them its loss was not measured; `suffice calibrate "
                "--window N` calibrates at N",
                SufficeWarning,
                stacklevel=2,
            )
            self._calibrated_tokens = None

    def _draftable(self, cache: KVCache) -> int:
        """Return how many rows may follow the committed ones in one step."""
        # Beyond the longest prompt, several tokens would be turned another way than single ones.
        return min(self.longest_prompt, cache.limit) - cache.length

    def _grow(self, cache: KVCache, rows: int, drafts: int) -> None:
        if drafts > 0:
            with contextlib.suppress(OutOfMemory):  # then without them
                cache.reserve(rows + drafts)
                return
        cache.reserve(rows)

    def propose(self, samples: abc.Sequence[DraftingSample], most: list[int]) -> list[Tree]:
        """Return drafts for the samples, at most so many tokens for each, for which space is."""
        return self.proposer.propose(samples, most)

    def forget(self, sample: DraftingSample) -> None:
        """Give back what the drafts of a sample that has ended needed."""
        self.proposer.forget(sample)

    def verify(
        self, sequences: list[Sequence], tokens: list[int], drafts: list[Tree]
    ) -> torch.Tensor:
        """Run one more token of each sequence, and drafts behind it, space reserved.

        Returns the logits after each token and then after each of its drafts, sequence by sequence,
        float32 [rows, V]. Those of a chain, or of a tree's first branch, are bit for bit those of
        single steps. The rows are tentative: `commit` some.
        """
        return self._step(
            [
                StepRows(
                    sequence.cache,
                    [token, *tree.tokens],
                    [-1, *(parent + 1 for parent in tree.parents)] if len(tree) else None,
                    outputs="all",
                )
                for sequence, token, tree in zip(sequences, tokens, drafts, strict=True)
            ]
        )

    def commit(self, sequence: Sequence, path: list[int]) -> None:
        """Keep these of the rows that a sequence had in `verify`, and forget the others."""
        sequence.cache.commit(path)
        self.config.policy.after_step(sequence.cache)

    def _step(self, batch: list[StepRows]) -> torch.Tensor:
        audit = self.audit is not None and self.trace.steps % self.audit == 0
        logits = self._native.step(batch, self.trace, audit=audit)
        caches = [rows.cache for rows in batch]
        self.trace.cached = sum(c.length for c in caches), sum(c.held_bytes for c in caches)
        return logits

    def step(self, sequences: list[Sequence], tokens: list[int]) -> torch.Tensor:
        """Run one more token of each sequence, space reserved; return float32 logits [B, V]."""
        return self.advance(sequences, [[token] for token in tokens])

    def advance(self, sequences: list[Sequence], chains: list[list[int]]) -> torch.Tensor:
        """Run known tokens of each sequence, space reserved, by one decode step.

        Returns the logits after each token, sequence by sequence, float32 [rows, V], which are, bit
        for bit, those of single steps.
        """
        policy = self.config.policy
        if policy.one_by_one and max(map(len, chains)) > 1:
            return self._advance_singly(sequences, chains)
        batch = [
            StepRows(sequence.cache, chain, outputs="all")
            for sequence, chain in zip(sequences, chains, strict=True)
        ]
        logits = self._step(batch)
        for sequence, rows in zip(sequences, batch, strict=True):
            self.commit(sequence, list(range(len(rows.tokens))))
        return logits

    def _advance_singly(self, sequences: list[Sequence], chains: list[list[int]]) -> torch.Tensor:
        found: list[list[torch.Tensor]] = [[] for _ in chains]
        for at in range(max(map(len, chains))):
            going = [i for i, chain in enumerate(chains) if at < len(chain)]
            logits = self.advance([sequences[i] for i in going], [[chains[i][at]] for i in going])
            for i, row in zip(going, logits, strict=True):
                found[i].append(row)
        return torch.stack([row for rows in found for row in rows])

    def fork(self, sequence: Sequence) -> Sequence:
        """Return an independent copy of a sequence.

        Raises:
            OutOfMemory: The copy's memory cannot be had.
        """
        return Sequence(sequence.request_id, sequence.cache.fork())

    def close(self, sequence: Sequence) -> None:
        """Give the sequence's memory back."""
        sequence.cache.close()


def _shown(watch: QueryObserver | None, end: int) -> Callable[[int, torch.Tensor], None] | None:
    """Return what shows a chunk's queries to a policy; the chunk ends before token `end`."""
    if watch is None:
        return None
    return lambda layer, queries: watch.add(layer, queries, end)
