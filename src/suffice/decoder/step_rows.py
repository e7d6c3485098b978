"""The rows of requests in one native step: what a caller gives, and how the core numbers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from suffice.cache.kv import MAX_TENTATIVE, KVCache
from suffice.decoder.weights import Watch
from suffice.trace import Reads

_EXACT, _COUNTED, _WATCHED, _TILED, _PYTHON, _SETTLED = 1, 2, 4, 8, 16, 32


@dataclass(frozen=True)
class StepRows:
    """The rows of one request in a step: tokens and, for drafts, their parents.

    `parents[i]` is the row of this step that row i continues, -1 for the last committed token;
    None means that each row continues the one before. `outputs`: how many of the last rows have
    logits; None: all. `after`: how many rows follow these, without logits. `states`: they have
    their last states instead, after the final norm.

    `technique`: the number of the rules by which they attend; see `NativeModel.add_rules`.
    `adapter`: the index of the one that changes the weights for them, -1 for none.
    `exact`: attend to everything, whatever the technique, as for prompts; then there may be more
    rows than drafts, unless they have parents or are counted. `counted`: the reads
    count, and are audited if the step is. `watch` receives each layer's index and the queries of
    these rows [H, T, D], rotated. `tiled`: they are of a prompt, whose tiles of `MAX_TENTATIVE`
    tokens may leave something unread, see `Omitted`. `streams`: how many of the last rows hand out
    what `NativeModel.hand_out` says. `reads_only`: one row of a decoder that stores nothing. It has
    the position after the committed rows and sees these; to the core it is the last of them.
    """

    cache: KVCache
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    outputs: int | None = 1
    after: int = 0
    technique: int = 0
    adapter: int = -1
    exact: bool = False
    counted: bool = True
    watch: Watch | None = None
    tiled: bool = False
    states: bool = False
    streams: int = 0
    reads_only: bool = False


class Piece(NamedTuple):
    """A part of a request's rows for which the core keeps masks of what they see.

    Rows of earlier pieces are committed rows to it.
    """

    rows: StepRows
    first: int
    size: int


def pieces(rows: StepRows) -> list[Piece]:
    """Return the parts that the core takes, of at most `MAX_TENTATIVE` rows."""
    count, most = len(rows.tokens), MAX_TENTATIVE
    if count <= most:
        return [Piece(rows, 0, count)]
    return [Piece(rows, first, min(most, count - first)) for first in range(0, count, most)]


def most_rows(rows: StepRows) -> int:
    """Return how many rows may be tentative at once: of a part of a prompt, any number."""
    prompt = rows.exact and not rows.counted and rows.parents is None
    return max(len(rows.tokens), MAX_TENTATIVE) if prompt else MAX_TENTATIVE


def kind(rows: StepRows, in_python: bool = False) -> int:
    """Return how rows take part in a step, as the core numbers it.

    `in_python`: their attention is computed by a technique's reference.
    """
    watched = _WATCHED * (rows.watch is not None)
    python = _PYTHON * in_python
    settled = _SETTLED * (rows.parents is None and not rows.counted)
    tiled = _TILED * rows.tiled
    return _EXACT * rows.exact + _COUNTED * rows.counted + watched + tiled + python + settled


def counted_rows(batch: Sequence[StepRows]) -> list[int]:
    """Return the places of the rows whose reads count, among all rows."""
    counted = [rows.counted for rows in batch for _ in rows.tokens]
    return [at for at, each in enumerate(counted) if each]


def note_audits(batch: Sequence[StepRows], reads: Sequence[Reads], found: np.ndarray) -> None:
    """Add an audited step's figures [5, L, rows, H] to the reads of each counted request."""
    first = 0
    for rows, own in zip(batch, reads, strict=True):
        if rows.counted:
            own.audit(found[:, :, first : first + len(rows.tokens)])
        first += len(rows.tokens)


def show(batch: Sequence[StepRows], queries: np.ndarray) -> None:
    """Show each watched request's queries, out of [L, rows, H, D], to its own watch.

    Where heads have D' < D entries, the first H D' of a row's are the queries.
    """
    first = 0
    for rows in batch:
        if rows.watch is None:
            continue
        own = queries[:, first : first + len(rows.tokens)]
        first += len(rows.tokens)
        for layer, rows_of_layer in enumerate(own):
            found = heads_of(rows_of_layer, rows.cache.size(layer))
            rows.watch(layer, found.swapaxes(0, 1))


def heads_of(rows: np.ndarray, size: int) -> np.ndarray:
    """Return a view [..., H, size] of rows [..., H, D] whose first H size entries are the heads."""
    heads, most = rows.shape[-2:]
    if size == most:
        return rows
    flat = rows.reshape(*rows.shape[:-2], heads * most)
    return flat[..., : heads * size].reshape(*rows.shape[:-2], heads, size)


class Drafted(NamedTuple):
    """All rows of a step: visibility masks, and the rows that have logits, states or streams."""

    tokens: list[int]
    positions: list[int]
    visible: list[int]
    outputs: list[int]
    states: list[int]
    streams: list[int]


def drafted(batch: Sequence[StepRows]) -> Drafted:
    """Make all rows tentative, and return them."""
    tokens: list[int] = []
    positions: list[int] = []
    visible: list[int] = []
    outputs: list[int] = []
    states: list[int] = []
    streams: list[int] = []
    for rows in batch:
        count, length = len(rows.tokens), rows.cache.length
        if rows.parents is None:
            parents = list(range(-1, count - 1))
            positions += range(length, length + count)
        else:
            parents = list(rows.parents)
            positions += [length + depth for depth in _depths(parents)]
        masks = [1] if rows.reads_only else rows.cache.draft(parents, most_rows(rows))
        visible += [mask >> row // MAX_TENTATIVE * MAX_TENTATIVE for row, mask in enumerate(masks)]
        start = len(tokens)
        tokens += rows.tokens
        end = start + count - rows.after
        own = count if rows.outputs is None else rows.outputs
        (states if rows.states else outputs).extend(range(end - own, end))
        streams += range(start + count - rows.streams, start + count)
    return Drafted(tokens, positions, visible, outputs, states, streams)


def _depths(parents: Sequence[int]) -> list[int]:
    """Return how many rows of the step each row continues."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def note_states(batch: Sequence[StepRows], reads: Sequence[Reads]) -> int:
    """Note in each request's reads the bytes of states that its rows moved; return their sum.

    A decode step reads all of a request's states once, and writes them once.
    """
    for rows, own in zip(batch, reads, strict=True):
        own.state_bytes_moved = 2 * int(rows.cache.native.state_bytes) if rows.counted else 0
    return sum(own.state_bytes_moved for own in reads)
