"""Runs the model: prompts in chunks and decode steps, all in native code."""

from __future__ import annotations

import warnings
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from suffice.cache import LayerRows, machine, next_capacity, token_bytes, types_of, with_defaults
from suffice.cache.kv import KVCache
from suffice.decoder.adapter import Adapter
from suffice.decoder.native_states import state_shapes
from suffice.decoder.pooling import Pooling
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.engine.assistants import Assistant
from suffice.engine.config import Config
from suffice.engine.heads import Follower, hand_over
from suffice.engine.protocol import How, Rows
from suffice.engine.whole_prompts import WholePrompts, shown_to
from suffice.errors import OutOfMemory, SufficeWarning
from suffice.native import LOGIT_BLOCK, core
from suffice.policy import QueryObserver
from suffice.speculate import DraftingSample, Proposer, Tree, Widths
from suffice.speculate.none import NoDrafts
from suffice.speculate.text_drafts import MOST_OF_TEXT, texts_draft
from suffice.trace import Reads, Trace


@dataclass(eq=False)
class Sequence:
    """A sample's state in the runner: its cache, and what was read of it."""

    request_id: str
    cache: KVCache
    watch: QueryObserver | None = None  # of the prompt that is being run
    reads: Reads = field(default_factory=Reads)  # by decode steps


class Runner(WholePrompts):
    """A model with the memory of its requests.

    `trace` sums the reads of all decode steps. Every `audit`-th step is audited; None for none.
    `sample` returns the tokens of a text, on which the model's keys are measured if rounded keys
    need that. `stored_as` is how the model's file stores its matrices, such as Q4_1, "" if there is
    no file; `seen` is what the system said of its files when they were read. `proposer` makes no
    drafts until `engine.load`, which can load draft models, replaces it; likewise `pooling`, how
    the model embeds.
    """

    def __init__(
        self,
        config: Config,
        decoder: DecoderWeights,
        sample: Callable[[], list[int]] = list,
        adapters: abc.Sequence[Adapter] = (),
        stamp: str = "",
    ) -> None:
        super().__init__(config, decoder, sample, adapters, stamp)
        model = decoder.config
        self.trace = Trace(len(model.cached), model.kv_heads, model.heads // model.kv_heads)
        plain = partial(token_bytes, config.dtype, config.dtype, joint=model.joint > 0)
        self.trace.plain_token_bytes = plain(model.rows)
        self.trace.plain_row_bytes = tuple(plain([LayerRows(1, own.size)]) for own in model.rows)
        self.trace.estimates = config.technique.estimates
        self.trace.confidence = config.technique.confidence
        self.stored_as = ""
        self.seen: tuple[tuple[int, ...], ...] = ()
        self._calibrated_tokens = config.calibrated_tokens
        self.audit = config.audit
        self.arena = core.Arena(config.kv_cache_bytes or 0)
        self.windows = [
            layer.window if layer.shares is None else 0 for layer in decoder.config.cached
        ]
        self._states = state_shapes(model.states)
        self.growth = machine.fitted_to_kernel(config.growth)
        self.maxima: np.ndarray | None = None  # of the last run's logits, see `LoopRunner`
        self.proposer: Proposer = NoDrafts()
        self._head: Follower | Assistant | None = None
        self.pooling = Pooling(0 if model.projected else model.width)

    @property
    def head(self) -> Follower | Assistant | None:
        """The head that reads the hidden states of the model's steps, if there is one."""
        return self._head

    @head.setter
    def head(self, head: Follower | Assistant) -> None:
        self._head = head
        self._native.hand_out(head.layers)

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Bytes of all caches, and their limit (0: none)."""
        return int(self.arena.used), int(self.arena.limit)

    def time_parts(self, timed: bool) -> None:
        """Time the parts of later steps, or no longer; see `take_part_seconds`."""
        self._native.time_parts(timed)

    def take_part_seconds(self) -> dict[str, float]:
        """Return the seconds of the timed steps since the last call by part, over all threads."""
        return self._native.take_part_seconds()

    def open(self, request_id: str, limit: int) -> Sequence:
        """Return a new, empty sequence that may grow to `limit` rows."""
        model = self.decoder.config
        keys, values = types_of(self.config.kv_cache_dtype)
        kind: Callable[..., KVCache] = KVCache
        if self.head is not None:
            # With a fixed number of drafts, a seed's tokens may not depend on where a head began.
            late = self.config.speculative_config.adaptive
            kind = self.head.kind(limit, self.growth, self.arena, late=late)
        cache = kind(
            model.rows,
            growth=self.growth,
            limit=limit,
            key_dtype=keys,
            value_dtype=values,
            arena=self.arena,
            sketch=self._sketched,
            bases=self._based,
            rounding=self._rounding,
            states=self._states,
            joint=model.joint,
            **dict.fromkeys(self.config.policy.keeps, True),
        )
        self.config.policy.prepare(cache, self.windows)
        return Sequence(request_id, cache)

    def prefill(self, sequence: Sequence, tokens: list[int]) -> np.ndarray:
        """Run tokens after the cached ones; return the last one's logits, float32 [V].

        Every token sees all earlier ones; then the policy chooses.

        Raises:
            OutOfMemory: After that, only `close` may be called for the sequence.
        """
        self.begin(sequence, len(tokens))
        *first, last = self._chunks(tokens)
        for chunk in first:
            self.run([Rows(sequence, chunk, 0, prompt=True, adapter=self.adapter)])
        (logits,) = self.run([Rows(sequence, last, 1, prompt=True, adapter=self.adapter)])
        self.end(sequence)
        return np.asarray(logits[0])

    def begin(self, sequence: Sequence, rows: int) -> None:
        """Reserve memory for the `rows` tokens of a prompt, which `run` runs in parts.

        Raises:
            OutOfMemory: Nothing has changed.
        """
        cache = sequence.cache
        self._watch_length(cache.length + rows)
        # The first row after the prompt is the answer's: growing for it would copy the prompt.
        self._grow(cache, min(rows + 1, cache.limit - cache.length))
        scale = self.decoder.config.attention_scale
        sequence.watch = self.config.policy.watch(cache, self.windows, scale)

    def populate(self, sequence: Sequence, size: int) -> bool:
        """Map `size` more bytes of what `begin` reserved; return whether all is mapped.

        New memory is zeroed at its first use: all of a long prompt's would be in its first part.
        """
        return sequence.cache.populate(size)

    def end(self, sequence: Sequence) -> None:
        """End a prompt: the policy chooses among its tokens.

        Raises:
            OutOfMemory: After that, only `close` may be called for the sequence.
        """
        watch, sequence.watch = sequence.watch, None
        self.config.policy.after_prompt(sequence.cache, self.windows, watch)

    def run(self, batch: abc.Sequence[Rows]) -> list[np.ndarray]:
        """Run rows of any sequences, of prompts and of decode steps; memory must be reserved.

        Returns what each asks for, float32, logits [outputs, V] or states [outputs, W]; they do not
        depend on the others by a single bit. A prompt's rows are committed, others are tentative
        until `commit`. If this raises, nothing has changed.
        """
        audit = self.audit is not None and self.trace.steps % self.audit == 0
        steps = [self._step_rows(rows) for rows in batch]
        streams = None
        if self.head is not None and any(part.follow for part in batch):
            streams = self.head.streams_of(steps)
        audit = audit and any(rows.counted for rows in steps)
        reads: list[Reads] = []
        asked = sum(part.count for part in batch if part.states)
        states = np.empty((asked, self.decoder.config.width), np.float32)
        count = sum(part.count for part in batch) - asked
        self.maxima = np.empty((count, -(-self.vocabulary // LOGIT_BLOCK)), np.float32)
        try:
            logits = self._native.step(
                steps,
                self.trace,
                audit=audit,
                reads=reads,
                maxima=self.maxima,
                states=states,
                streams=streams,
            )
        except BaseException:
            for rows in steps:
                rows.cache.rollback()
            raise
        if streams is not None:
            hand_over(steps, streams)
        for part, own in zip(batch, reads, strict=True):
            part.sequence.reads.add(own)
            if part.prompt:
                part.sequence.cache.commit(list(range(len(part.tokens))))
        left = {False: logits, True: states}
        found = []
        for part in batch:
            rest = left[part.states]
            found.append(rest[: part.count])
            left[part.states] = rest[part.count :]
        return found

    def _step_rows(self, rows: Rows) -> StepRows:
        cache, tokens, tree = rows.sequence.cache, rows.tokens, rows.drafts
        how: How = {"technique": rows.technique, "adapter": rows.adapter}
        streams = self._streams(rows)
        if rows.prompt:
            return StepRows(
                cache,
                tokens,
                outputs=rows.outputs,
                **how,
                exact=not self.config.softmax.prefill,
                states=rows.states,
                counted=False,
                watch=shown_to(rows.sequence.watch, cache.length + len(tokens)),
                tiled=self.tiled,
                streams=streams,
            )
        if not len(tree):
            return StepRows(cache, tokens, outputs=rows.outputs, **how, streams=streams)
        known = len(tokens)
        parents = [*range(-1, known - 1), *(parent + known for parent in tree.parents)]
        nodes = [*tokens, *tree.tokens]
        return StepRows(cache, nodes, parents, rows.outputs, **how, streams=streams)

    def _streams(self, rows: Rows) -> int:
        """Return of how many rows, the last ones, hidden states are handed out."""
        if self.head is None:
            return 0
        most = min(len(rows.tokens) + len(rows.drafts), rows.follow)
        return min(most, rows.count) if rows.prompt and not self.head.reads_prompts else most

    @property
    def most_drafts(self) -> int:
        """The largest number of tokens drafted for a step; 0 if there are no drafts."""
        speculator = self.config.speculative_config
        own = speculator.num_speculative_tokens * speculator.width
        return max(own, MOST_OF_TEXT) if texts_draft(speculator) else own

    def reserve(
        self, sequence: Sequence, rows: int = 1, drafts: int = 0, tokens_per_step: float = 1.0
    ) -> int:
        """Reserve memory for `rows` more tokens; return how many of `drafts` drafts fit as well.

        Drafts use spare rows, or rows allocated together with one that is needed now. Drafts alone
        never make the cache grow; fewer are made instead (BMC, VI-A). The growth depends on
        `tokens_per_step`, the mean number of tokens a step has given so far (Eq. 9).

        Raises:
            OutOfMemory: Nothing has changed.
        """
        cache = sequence.cache
        self._watch_length(cache.length + rows)
        if drafts:
            drafts = min(drafts, self._draftable(cache) - rows)
        if cache.spare < rows:
            cache.growth = with_defaults(self.growth, accepted=tokens_per_step)
            self._grow(cache, rows, drafts)
        return max(min(drafts, cache.room(rows + drafts) - rows), 0) if drafts else 0

    def _watch_length(self, tokens: int) -> None:
        """Warn, once, of a context longer than the calibration's windows."""
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
        return cache.limit - cache.length

    def _grow(self, cache: KVCache, rows: int, drafts: int = 0) -> None:
        held, before = cache.bytes, cache.capacity
        try:
            cache.reserve(rows + max(drafts, 0))
        except OutOfMemory:
            if drafts <= 0:
                raise
            cache.reserve(rows)  # grow without drafts
        if cache.capacity > before > 0:
            self.trace.growth_bytes_copied += held * cache.length // before

    def follow(self, sequences: abc.Sequence[Sequence]) -> None:
        """Make a head's rows of texts with many tokens that wait for it."""
        if self.head is not None:
            self.head.follow([each.cache for each in sequences])

    def propose(self, samples: abc.Sequence[DraftingSample], shapes: list[Widths]) -> list[Tree]:
        """Return drafts for each sample, in these shapes, for which memory is reserved."""
        return self.proposer.propose(samples, shapes)

    def forget(self, sample: DraftingSample) -> None:
        """Sum up the run of a sample that has ended, and free its drafting state."""
        if sample.sequence is not None:
            cache = sample.sequence.cache
            self.trace.cached = cache.length, cache.held_bytes
        self.proposer.forget(sample)

    def commit(self, sequence: Sequence, path: list[int]) -> None:
        """Keep the rows in `path` of a sequence's rows in `run`, and drop the others."""
        sequence.cache.commit(path)
        self.config.policy.after_step(sequence.cache)

    def step(self, sequences: list[Sequence], tokens: list[int]) -> np.ndarray:
        """Run one more token of each sequence; return logits, float32 [B, V].

        Memory must be reserved.
        """
        return self.advance(sequences, [[token] for token in tokens])

    def advance(self, sequences: list[Sequence], chains: list[list[int]]) -> np.ndarray:
        """Run known tokens of each sequence in one decode step; memory must be reserved.

        Returns the logits after each token, sequence by sequence, float32 [rows, V]. They equal the
        logits of single steps bit for bit.
        """
        if self.config.policy.one_by_one and max(map(len, chains)) > 1:
            return self._advance_singly(sequences, chains)
        both = zip(sequences, chains, strict=True)
        logits = self.run([Rows(sequence, own, adapter=self.adapter) for sequence, own in both])
        for sequence, chain in zip(sequences, chains, strict=True):
            self.commit(sequence, list(range(len(chain))))
        return np.concatenate(logits)

    def _advance_singly(self, sequences: list[Sequence], chains: list[list[int]]) -> np.ndarray:
        found: list[list[np.ndarray]] = [[] for _ in chains]
        for at in range(max(map(len, chains))):
            going = [i for i, chain in enumerate(chains) if at < len(chain)]
            logits = self.advance([sequences[i] for i in going], [[chains[i][at]] for i in going])
            for i, row in zip(going, logits, strict=True):
                found[i].append(row)
        return np.stack([row for rows in found for row in rows])

    def fork(
        self, sequence: Sequence, rows: int | None = None, spare: int | None = None
    ) -> Sequence:
        """Return an independent copy of a sequence's first `rows` tokens, by default of all.

        It has memory for `spare` more, by default for as many as the sequence.

        Raises:
            OutOfMemory: There is no memory for the copy.
        """
        return Sequence(sequence.request_id, sequence.cache.fork(rows, spare))

    def rewind(self, sequence: Sequence, rows: int) -> None:
        """Cut a sequence back to `rows` tokens of a prompt, as if no decode step had followed."""
        sequence.cache.truncate(rows)
        sequence.cache.forget_answers()

    def bytes_of(self, rows: int) -> int:
        """Return about how many bytes a sequence of `rows` tokens takes when it next grows."""
        capacity = next_capacity(self.growth, min(rows + 1, self.context), 0, self.context)
        model = self.decoder.config
        types = types_of(self.config.kv_cache_dtype)
        row = token_bytes(*types, model.rows, joint=model.joint > 0, based=self._based)
        states = 2 * sum(int(state.bytes) for state in self._states)
        if self.head is None:
            return capacity * row + states
        return capacity * row + (capacity + self.head.block_rows) * self.head.row_bytes + states

    def close(self, sequence: Sequence) -> None:
        """Free the sequence's memory."""
        sequence.cache.close()
