"""The decode step in native code: one call for all the rows of all requests.

The native model points into the decoder's packed weights, so no weight is stored twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suffice.attention.levels import Levels
from suffice.attention.rule import READ_ALL, AttentionRule, coded_rules
from suffice.backends.cpu.rules import native_rule
from suffice.decoder import step_rows
from suffice.decoder.adapter import Adapter
from suffice.decoder.names import AROUND
from suffice.decoder.native_blocks import add_block, named_parts, parts_of
from suffice.decoder.python_attention import NativeArguments, PythonAttention, PythonStep
from suffice.decoder.step_rows import Piece, StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.native import PANEL, core
from suffice.trace import BoundSums, Reads, Trace, unaudited

Ints = np.ndarray[tuple[int], np.dtype[np.int32]]
FIRST_POSITIONS = 4096  # with rotations from the start; more are computed when reached


@dataclass(frozen=True)
class Omitted:
    """Parts of a step that are left out to make it cheaper.

    Tokens see the last `recent` keys (0: all), their own included, and the first `sinks`; a layer's
    own window stays if it is narrower. `layers` are skipped: they neither read nor store keys. The
    lightest experts of a row are skipped up to the share `experts` of its weights. A tile of a
    prompt may leave the share `prompts` of its softmaxes unread, on average.
    """

    recent: int = 0
    sinks: int = 0
    layers: tuple[int, ...] = ()
    experts: float = 0.0
    prompts: float = 0.0


class NativeModel:
    """Runs decode steps of `decoder`, whose weights it shares, for up to `positions` positions.

    `rules` [L][G] select the keys and values that attention reads (None: all); other rules may be
    added, and rows name theirs. `levels` [L][H] are
    the tables of a coded softmax (none: weights are e^x). `omitted` is left out of every step.
    Rows may name one of the `adapters`.
    """

    def __init__(
        self,
        decoder: DecoderWeights,
        positions: int,
        rules: Sequence[Sequence[AttentionRule | None]] | None = None,
        levels: Sequence[Sequence[Levels]] = (),
        omitted: Omitted = Omitted(),
        adapters: Sequence[Adapter] = (),
    ) -> None:
        config = decoder.config
        self._config = config
        self._vocab = config.vocab
        self._padded = -(-config.vocab // PANEL) * PANEL
        self._decoder = decoder
        self._positions = positions
        self._omitted = omitted
        self._levels = levels
        self._adapters = adapters
        self._reached = min(positions, FIRST_POSITIONS)  # covered by the tables of rotations
        self._timed = False
        self._taps: list[int] = []
        self._model = self._built()
        self._rules: list[list[core.AttentionRule]] = [[]]
        self._python: list[PythonAttention | None] = [None]  # of each number of rules
        self.use(rules or [[None] * config.kv_heads for _ in config.rows])
        self._untraced = Trace(len(config.rows), config.kv_heads)

    def _built(self) -> core.Model:
        """Return the core's model, with rotations for the positions reached so far."""
        decoder, config = self._decoder, self._config
        learned = self._positions if config.position_rows else 0
        model = core.Model(
            width=config.width,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_size=config.head_size,
            vocabulary=config.vocab,
            embedding_width=config.embed_width,
            layer_norm=config.norm == "layer",
            norm_eps=config.norm_eps,
            attention_scale=config.attention_scale,
            embedding_scale=decoder.embed_scale,
            logit_scale=config.logit_scale,
            score_cap=config.score_cap,
            logit_cap=config.logit_cap,
            position_rows=learned,
            adapters=len(self._adapters),
            joint=config.joint,
        )
        for cos, sin in decoder.rope_tables(self._reached):
            tables = np.ascontiguousarray(cos), np.ascontiguousarray(sin)
            model.add_rope(*tables, self._reached, cos.shape[1])
        if config.query_growth is not None:
            model.set_query_scales(decoder.query_scales(self._reached), self._reached)
        if size := config.layer_embed_size:
            scales = decoder.layer_embed_scale, config.width**-0.5, 2**-0.5
            model.set_layer_embeddings(size, *scales)
        if (head := config.drafts) is not None:
            kinds = head.normed_stream, head.plain, head.block > 0
            model.begin_with_hidden(head.hidden, head.vocab, *kinds)
            if head.rows:
                shares = [-1 if own.shares is None else own.shares for own in head.rows]
                sizes = [own.heads for own in head.rows], [own.size for own in head.rows]
                model.read_caches(*sizes, shares)
        for index in range(len(config.layers)):
            model.add_layer(decoder.layer_scale(index))
            for place, block in enumerate(config.blocks(index)):
                parts = parts_of(block, decoder, (index, place), self._adapters)
                add_block(model, block, parts)
        names = ("embed_norm", "hidden_norm", "final_norm", "layer_embed_norm")
        parts = named_parts(decoder, "", AROUND, {name: name for name in names})
        if config.tied:
            parts["head"] = parts["embed"]
        if head is not None and head.groups:
            parts["kept_groups"] = head.kept_groups
        if learned:
            table = decoder.weights["positions"]
            assert isinstance(table, np.ndarray)
            parts["positions"] = table[config.position_offset :][:learned]
        model.finish(parts)
        omitted = self._omitted
        model.leave_out(omitted.recent, omitted.sinks, list(omitted.layers))
        model.leave_out_experts(omitted.experts)
        model.leave_out_in_prompts(omitted.prompts)
        model.time_parts(self._timed)
        model.set_taps(self._taps)
        return model

    def time_parts(self, timed: bool) -> None:
        """Time the parts of later steps, or no longer."""
        self._timed = timed
        self._model.time_parts(timed)

    def take_part_seconds(self) -> dict[str, float]:
        """Return the seconds, summed over threads, by part of the timed steps since the last call.

        What was timed before the tables of rotations were extended is lost.
        """
        return self._model.take_part_seconds()

    def hand_out(self, layers: Sequence[int]) -> None:
        """Let later steps hand out the inputs of these layers, in ascending order.

        Their number stands for what the last one gives, and one more for that after the final norm.
        """
        self._taps = list(layers)
        self._model.set_taps(self._taps)

    def _reach(self, positions: int) -> None:
        """Extend the rotations to that many positions, up to the context length."""
        if positions > self._reached and self._reached < self._positions and self._config.ropes:
            self._reached = min(self._positions, max(positions, 2 * self._reached))
            self._model = self._built()
            self._model.set_rules(self._rules)

    def use(self, rules: Sequence[Sequence[AttentionRule | None]]) -> None:
        """Attend by these rules, [L][G], from now on; None: read everything."""
        self._rules[0] = self._native_rules(rules)
        self._python[0] = self._python_attention(rules)
        self._model.set_rules(self._rules)

    def add_rules(self, rules: Sequence[Sequence[AttentionRule | None]]) -> int:
        """Let rows attend by these rules, [L][G], as well; return their number."""
        self._rules.append(self._native_rules(rules))
        self._python.append(self._python_attention(rules))
        self._model.set_rules(self._rules)
        return len(self._rules) - 1

    def _native_rules(
        self, rules: Sequence[Sequence[AttentionRule | None]]
    ) -> list[core.AttentionRule]:
        """Return the rules of all layers; those of heads that a layer lacks read everything."""
        shapes, most = self._config.rows, self._config.kv_heads
        own = [layer[: rows.heads] for layer, rows in zip(rules, shapes, strict=True)]
        coded = coded_rules(own, self._levels)
        padded = [[*layer, *[READ_ALL] * (most - len(layer))] for layer in coded]
        return [native_rule(rule) for layer in padded for rule in layer]

    def _python_attention(
        self, rules: Sequence[Sequence[AttentionRule | None]]
    ) -> PythonAttention | None:
        """Return the technique whose reference attends, None if the core does."""
        found = {rule.technique for layer in rules for rule in layer if rule is not None} - {None}
        assert len(found) <= 1, "heads of one model attend by one technique in Python"
        scale = self._config.attention_scale
        return PythonAttention(found.pop(), scale, self._levels) if found else None

    def in_python(self, technique: int) -> bool:
        """Whether the rules of a number are a technique's whose reference attends."""
        return self._python[technique] is not None

    def _python_step(
        self, pieces: Sequence[Piece], audit: np.ndarray | None
    ) -> tuple[list[int], NativeArguments | None]:
        """Return each piece's kind, and what the core takes for attention in Python, if any is."""
        own = [None if p.rows.exact else self._python[p.rows.technique] for p in pieces]
        kinds = [
            step_rows.kind(p.rows, each is not None) for p, each in zip(pieces, own, strict=True)
        ]
        if not any(own):
            return kinds, None
        config = self._config
        sizes = config.heads, config.kv_heads, config.head_size
        return kinds, PythonStep(pieces, own, *sizes, audit).native

    def _watched(self, batch: Sequence[StepRows]) -> np.ndarray | None:
        """Return room for the queries of watched rows, [L, rows, H, D]; None if there are none."""
        rows = sum(len(rows.tokens) for rows in batch if rows.watch is not None)
        if not rows:
            return None
        config = self._config
        return np.empty((len(config.rows), rows, config.heads, config.head_size), np.float32)

    def _unaudited(self, rows: int) -> np.ndarray:
        return unaudited(len(self._config.rows), rows, self._config.heads)

    def step(
        self,
        batch: Sequence[StepRows],
        trace: Trace | None = None,
        *,
        audit: bool = False,
        reads: list[Reads] | None = None,
        maxima: np.ndarray | None = None,
        states: np.ndarray | None = None,
        streams: np.ndarray | None = None,
        hidden: np.ndarray | None = None,
    ) -> np.ndarray:
        """Run the rows of a batch and return float32 logits [outputs, V].

        `audit`: measure the technique's error on the counted rows, into `trace.audit`. What each
        request read is appended to `reads`: the rows of decode steps if they are counted, and what
        tiles of its prompt read. `maxima` float32 [outputs, B] gets the maximum of each block of
        `LOGIT_BLOCK` logits; where the block or one near it has a NaN, it is NaN. `states` float32
        [rows, W] gets the last states of the rows that have these, `streams` [rows, taps, W] what
        `hand_out` says, of rows that have it. `hidden` float32 [T, H] are the hidden states of
        all rows of a decoder that drafts, those of the other model or [T, W] its own. One that
        drafts blocks makes keys and values of them and does nothing else; without, it runs a block.

        The rows become tentative rows of their caches: commit or roll them back. Space for them
        must be reserved. Row counts of reads are added to `trace`.

        Raises:
            InputError: Too many rows; or a technique in Python fails.
        """
        pieces = [piece for rows in batch for piece in step_rows.pieces(rows)]
        drafted = step_rows.drafted(batch)
        self._reach(max(drafted.positions, default=0) + 1)
        logits = np.empty((len(drafted.outputs), self._padded), np.float32)
        trace = self._untraced if trace is None else trace
        queries = self._watched(batch)
        found = self._unaudited(len(drafted.tokens)) if audit else None
        kinds, python = self._python_step(pieces, found)
        counts, each = self._model.step(
            *_numbers(pieces, kinds),
            _ints(drafted.tokens),
            _ints(drafted.positions),
            np.array(drafted.visible, dtype=np.uint32).view(np.int32),
            _ints(drafted.outputs),
            logits,
            trace.rows,
            queries,
            found,
            maxima,
            python,
            None if states is None else (_ints(drafted.states), states),
            None if streams is None else (_ints(drafted.streams), streams),
            hidden,
        )
        if queries is not None:
            step_rows.show(batch, queries)
        own = _by_rows(pieces, each)
        _add_counts(trace, batch, own, counts, found)
        if reads is not None:
            reads.extend(own)
        return logits[:, : self._vocab]


def _numbers(
    pieces: Sequence[Piece], kinds: Sequence[int]
) -> tuple[list[core.KVCache], Ints, Ints, Ints, Ints, Ints]:
    """Return the cache, length, size, kind, technique and adapter of each piece."""
    return (
        [piece.rows.cache.native for piece in pieces],
        _ints([piece.rows.cache.length + piece.first - piece.rows.reads_only for piece in pieces]),
        _ints([piece.size for piece in pieces]),
        _ints(kinds),
        _ints([piece.rows.technique for piece in pieces]),
        _ints([piece.rows.adapter for piece in pieces]),
    )


def _by_rows(pieces: Sequence[Piece], reads: Sequence[tuple[Any, ...]]) -> list[Reads]:
    """Return what each of the batch's rows read, of what the core says of their pieces."""
    found: list[Reads] = []
    for piece, (*counts, bounds) in zip(pieces, reads, strict=True):
        one = Reads(*counts)
        one.bounds = BoundSums(*bounds)
        if piece.first == 0:
            found.append(one)
        else:
            found[-1].add(one)
    return found


def _add_counts(
    trace: Trace,
    batch: Sequence[StepRows],
    reads: Sequence[Reads],
    counts: core.Counts,
    found: np.ndarray | None,
) -> None:
    """Add a step's counts to the trace; what its audit found [5, L, T, H] also to all reads."""
    trace.add_tiles(counts)
    state_bytes = step_rows.note_states(batch, reads)
    if any(rows.counted for rows in batch):
        trace.add(counts, steps=1, state_bytes=state_bytes)
    if found is not None:
        trace.add_audit(found[:, :, step_rows.counted_rows(batch)])
        step_rows.note_audits(batch, reads, found)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int32)
