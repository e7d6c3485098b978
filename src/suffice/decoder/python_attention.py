"""Attention by the references of techniques, in a native step.

The core runs everything else. In each layer, once the new keys are stored, one of its threads calls
back, and the techniques attend for the rows that are theirs, one token at a time: a token's arrays
are those that it would have without drafts and other requests, so its result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from suffice.attention import ATTENTIONS, Attention
from suffice.attention.exact import Exact
from suffice.attention.levels import Levels
from suffice.attention.python import check_attended, scores_of
from suffice.attention.traversal import Attended
from suffice.cache.kv import KVCache
from suffice.decoder.step_rows import Piece, heads_of
from suffice.outside import reported

# What the core takes: a function of the layer, and arrays that it fills and reads.
NativeArguments: TypeAlias = tuple[
    Callable[[int], None],
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.int64],
]
_SEEN, _COUNTS = 4, 4  # numbers of a row's visibility, and of what a head read for it


@dataclass
class _States:
    """The states of a sequence's heads, [L][G], after its first `length` tokens."""

    length: int
    by_layer: dict[int, list[Any]]


class PythonAttention:
    """A technique whose reference attends; `levels` [L][H] are those of a coded softmax."""

    def __init__(
        self, technique: Attention, scale: float, levels: Sequence[Sequence[Levels]] = ()
    ) -> None:
        self.name = ATTENTIONS.name_of(technique)
        self._technique: Any = technique
        self._scale = scale
        self._levels = levels
        self._states: WeakKeyDictionary[KVCache, _States] = WeakKeyDictionary()

    def begin(self, cache: KVCache, rows: int) -> None:
        """Begin a step of a sequence's next tokens.

        States go on only where the tokens do: after a prompt, or tokens that were taken back, they
        are new.
        """
        if self._technique.stateless:
            return
        length = cache.length
        own = self._states.get(cache)
        if own is None or own.length != length:
            own = self._states[cache] = _States(length, {})
        own.length = length + rows

    def attend(
        self, cache: KVCache, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, **seen: Any
    ) -> Attended:
        """Return one token's attention.

        Raises:
            InputError: The technique fails, or returns something else.
        """
        given = dict(seen)
        if self._levels:
            given["levels"] = self._levels[layer]
        with reported(f"attention '{self.name}' fails in layer {layer}"):
            if not self._technique.stateless:
                by_layer = self._states[cache].by_layer
                if layer not in by_layer:
                    by_layer[layer] = [self._technique.new_state() for _ in k]
                given["states"] = by_layer[layer]
            found = self._technique.reference(q, k, v, scale=self._scale, **given)
        owner = f"attention '{self.name}': reference"
        return check_attended(owner, found, q, k, seen.get("visible"))

    def errors(
        self,
        found: Attended,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        visible: np.ndarray | None,
    ) -> np.ndarray:
        """Return `missing` and `error` of one token's attention, [2, H]; see `suffice.trace`."""
        q, k, v = (each.astype(np.float64) for each in (q, k, v))
        exact = Exact().reference(q, k, v, scale=self._scale, visible=visible).output[:, 0]
        scores = scores_of(q, k, self._scale)[:, 0]
        if visible is not None:
            scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        read = np.repeat((found.keys & found.values)[0], len(q) // len(k), 0)
        missing = (weights * ~read).sum(-1) / weights.sum(-1)
        off = np.linalg.norm(found.output[:, 0] - exact, axis=-1)
        length = np.linalg.norm(exact, axis=-1)
        error = np.divide(off, length, out=np.zeros_like(off), where=length > 0)
        return np.stack([np.full_like(missing, np.nan) if self._levels else missing, error])


class PythonStep:
    """The rows of a step that techniques in Python attend for, and the arrays of the core.

    `by_piece`: the technique of each piece, None where the core attends. `audit` float32
    [5, L, rows, H] receives the errors of counted rows; see `suffice.trace.Audit`.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        by_piece: Sequence[PythonAttention | None],
        heads: int,
        kv_heads: int,
        size: int,
        audit: np.ndarray | None,
    ) -> None:
        rows = sum(piece.size for piece in pieces)
        self._pieces, self._by_piece, self._audit = pieces, by_piece, audit
        self._queries = np.zeros((rows, heads, size), np.float32)
        self._visible = np.zeros((rows, _SEEN), np.int32)
        self._outputs = np.zeros_like(self._queries)
        self._reads = np.zeros((rows, kv_heads, _COUNTS), np.int64)
        for piece, _, attention in self._own():
            attention.begin(piece.rows.cache, piece.size)

    @property
    def native(self) -> NativeArguments:
        """What the core takes."""
        return self.attend, self._queries, self._visible, self._outputs, self._reads

    def attend(self, layer: int) -> None:
        """Attend for all rows in a layer."""
        for piece, start, attention in self._own():
            cache = piece.rows.cache
            held = int(self._visible[start, 1]) + piece.size
            keys, values = cache.keys(layer, held), cache.values(layer, held)
            for row in range(start, start + piece.size):
                self._attend_row(layer, row, attention, cache, keys, values, piece.rows.counted)

    def _own(self) -> Iterator[tuple[Piece, int, PythonAttention]]:
        start = 0
        for piece, attention in zip(self._pieces, self._by_piece, strict=True):
            if attention is not None:
                yield piece, start, attention
            start += piece.size

    def _attend_row(
        self,
        layer: int,
        row: int,
        attention: PythonAttention,
        cache: KVCache,
        keys: np.ndarray,
        values: np.ndarray,
        counted: bool,
    ) -> None:
        k, v, visible = _rows_of(self._visible[row].tolist(), keys, values)
        q = heads_of(self._queries[row], k.shape[-1])[:, None]
        for each in (q, k, v):
            each.flags.writeable = False  # other tokens and an audit read them, too
        given = {} if visible is None else {"visible": visible}
        found = attention.attend(cache, layer, q, k, v, **given)
        heads_of(self._outputs[row], k.shape[-1])[...] = found.output[:, 0]
        read = self._reads[row, : len(k)]
        read[:, 0], read[:, 1] = found.keys[0].sum(-1), found.values[0].sum(-1)
        read[:, 2] = read[:, 1] * (len(q) // len(k))
        read[:, 3] = 0 if found.sketch_bytes is None else found.sketch_bytes[0]
        if self._audit is not None and counted:
            self._audit[:2, layer, row] = attention.errors(found, q, k, v, visible)


def _rows_of(
    sees: list[int], keys: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the keys and values [G, S, D] of a token's past and itself, and which rows it sees.

    `sees`: the fields of the core's `Visible`. Drafts that the token does not continue are left
    out. The last result is bool [1, S], None for all.
    """
    first, committed, drafts, sinks = sees
    own = [committed + at for at in range(32) if drafts >> at & 1]
    if own == list(range(committed, committed + len(own))):
        stop = committed + len(own)
        k, v = keys[:, :stop], values[:, :stop]
    else:
        rows = np.array([*range(committed), *own])
        k, v = keys[:, rows], values[:, rows]
    if first <= sinks:
        return k, v, None
    at = np.arange(k.shape[1])
    return k, v, ((at >= first) | (at < sinks))[None]
