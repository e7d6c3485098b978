"""Matrices that a checkpoint stores as one, transposed or in another order, each by its name.

A family's name map has a `Slice` for such a matrix (`decoder.name_maps`). `slice_source` makes a
source in which it can be read as any other: only its own rows are read, or, of a transposed one,
all of the stored matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.source import Source, UnreadCodes
from suffice.checkpoints.stored_file import Array
from suffice.quant.packed_float8 import StoredFloat8

_PANEL_ROWS = 16


@dataclass(frozen=True)
class View:
    """Rows of a stored weight: from `first` on, `run` at a time, whose starts are `step` apart.

    With an `order`, row i of each `len(order)` is `order[i]` of each `step` stored ones.
    `turned`: each run of stored rows [K, N] is a matrix [N, K] of the view.
    """

    stored: str
    shape: tuple[int, ...]
    first: int
    run: int
    step: int
    transposed: bool
    order: tuple[int, ...] = ()
    turned: bool = False

    def runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield runs of `count` rows from `first` on: where stored, how many before, how many."""
        done = 0
        while done < count:
            turn, within = divmod(first + done, self.run)
            rows = min(self.run - within, count - done)
            yield self.first + turn * self.step + within, done, rows
            done += rows

    def panels(self, stored: int) -> NDArray[np.intp] | None:
        """Return which panels of `stored` rows its rows are; None: they are not whole ones."""
        if self.transposed:
            return None
        at = np.arange(self.shape[0], dtype=np.intp)
        if self.order:
            turn, within = np.divmod(at, len(self.order))
            rows = turn * self.step + np.array(self.order)[within]
        else:
            rows = self.first + at // self.run * self.step + at % self.run
        firsts = rows[::_PANEL_ROWS]
        whole = len(rows) % _PANEL_ROWS == 0 or rows[-1] == stored - 1
        aligned = rows == firsts[at // _PANEL_ROWS] + at % _PANEL_ROWS
        if not (whole and aligned.all()) or (firsts % _PANEL_ROWS).any():
            return None
        found: NDArray[np.intp] = firsts // _PANEL_ROWS
        return found

    def of(self, whole: Array) -> Array:
        """Return the view's rows of a stored weight."""
        if self.order:
            return self.ordered(whole)
        if self.turned:
            return self.turn(whole)
        rows = self.rows_of(whole)
        if self.run == 1:
            return np.ascontiguousarray(rows[self.alternate(0, self.shape[0])])
        runs = self.runs(0, self.shape[0])
        return np.concatenate([rows[start : start + count] for start, _, count in runs])

    def ordered(self, rows: Array) -> Array:
        """Return the view's rows of whole groups of stored rows."""
        groups = rows.reshape(-1, self.step, *rows.shape[1:])
        return groups[:, list(self.order)].reshape(-1, *rows.shape[1:])

    def turn(self, rows: Array) -> Array:
        """Return the matrices that whole steps of stored rows hold turned, below each other."""
        runs = rows.reshape(-1, self.step, rows.shape[1])[:, self.first : self.first + self.run]
        return np.ascontiguousarray(runs.swapaxes(1, 2)).reshape(-1, self.run)

    def rows_of(self, whole: Array) -> Array:
        """Return all rows of a stored weight, those of all experts below each other."""
        own = len(self.shape)
        if self.transposed and own > 1:
            whole = whole.swapaxes(-1, -2)
        return whole.reshape(-1, *self.shape[1:]) if whole.ndim != own else whole

    def alternate(self, first: int, count: int) -> slice:
        """Return where `count` rows from `first` on stand, of runs of one row."""
        start = self.first + first * self.step
        return slice(start, start + (count - 1) * self.step + 1, self.step)


def slice_source(source: Source, views: Mapping[str, View]) -> Source:
    """Return a source that also has views of its weights; without any, the source itself."""
    return _Sliced(source, views) if views else source


class _Sliced:
    """A source's weights, and views of them by their own names."""

    def __init__(self, source: Source, views: Mapping[str, View]) -> None:
        self._source, self._views = source, views
        self._shapes = {**source.shapes(), **{name: view.shape for name, view in views.items()}}
        self._turned: tuple[str, Array] | None = None  # blocks of rows come one after the other

    def _stored(self, name: str) -> str:
        return self._views[name].stored if name in self._views else name

    def _rows(self, view: View) -> int:
        """Return the rows that the stored weight has as a matrix of views."""
        return math.prod(self._shapes[view.stored]) // math.prod(view.shape[1:])

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every stored weight and of every view."""
        return self._shapes

    def dtype(self, name: str) -> str:
        """Return the smallest type that holds a weight."""
        return self._source.dtype(self._stored(name))

    def stored(self, name: str) -> tuple[str, int]:
        """Return the type in which a weight is stored, and its bytes."""
        kind, size = self._source.stored(self._stored(name))
        if name in self._views:
            view = self._views[name]
            size = size * view.shape[0] // self._rows(view)
        return kind, size

    @property
    def label(self) -> str | None:
        """The file's name for its storage as a whole."""
        return self._source.label

    def load(self, name: str) -> Array:
        """Read one weight in a floating-point type.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        found = self._source.load(self._stored(name))
        return self._views[name].of(found) if name in self._views else found

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Convert rows `first`, `first` + 1, ... of a matrix into all rows of `out` [rows, K].

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        view = self._views.get(name)
        if view is None:
            return self._source.load_rows(name, first, out)
        if view.order:
            return self._load_ordered(view, first, out)
        if view.turned:
            return self._load_turned(view, first, out)
        if view.run == 1:
            return self._load_alternating(view, first, out)
        for start, to, rows in view.runs(first, len(out)):
            part = out[to : to + rows]
            if view.transposed:
                part[...] = self._turned_rows(view)[start : start + rows]
            else:
                self._source.load_rows(view.stored, start, part)

    def _load_alternating(self, view: View, first: int, out: NDArray[np.float32]) -> None:
        if view.transposed:
            out[...] = self._turned_rows(view)[view.alternate(first, len(out))]
            return
        all_rows = np.empty((len(out) * view.step, *out.shape[1:]), np.float32)
        self._source.load_rows(view.stored, first * view.step, all_rows)
        out[...] = all_rows[view.alternate(0, len(out))]

    def _load_ordered(self, view: View, first: int, out: NDArray[np.float32]) -> None:
        size, last = len(view.order), first + len(out)
        begin, end = first // size, -(-last // size)
        if view.shape[0] == size:  # one group: every block of rows would read all of it
            out[...] = self._turned_rows(view)[list(view.order[first:last])]
            return
        groups = np.empty(((end - begin) * view.step, *out.shape[1:]), np.float32)
        self._source.load_rows(view.stored, begin * view.step, groups)
        out[...] = view.ordered(groups)[first - begin * size : last - begin * size]

    def _load_turned(self, view: View, first: int, out: NDArray[np.float32]) -> None:
        size, last = self._shapes[view.stored][1], first + len(out)  # rows of a matrix
        begin, end = first // size, -(-last // size)
        runs = np.empty(((end - begin) * view.step, size), np.float32)
        self._source.load_rows(view.stored, begin * view.step, runs)
        out[...] = view.turn(runs)[first - begin * size : last - begin * size]

    def _turned_rows(self, view: View) -> Array:
        """Return all rows of a stored matrix; the last one is kept."""
        if self._turned is None or self._turned[0] != view.stored:
            self._turned = view.stored, view.rows_of(self._source.load(view.stored))
        return self._turned[1]

    def in_codes(self, name: str) -> bool:
        """Return whether a matrix is stored in codes that become panels, whole ones of its own."""
        view = self._views.get(name)
        if view is None or not self._source.in_codes(view.stored):
            return self._source.in_codes(self._stored(name))
        if view.turned:
            return False
        if view.run == 1:
            return not view.transposed
        return view.panels(self._rows(view)) is not None

    def codes(self, name: str) -> UnreadCodes | StoredFloat8:
        """Return a matrix that is stored in codes.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        found = self._source.codes(self._stored(name))
        view = self._views.get(name)
        if view is None:
            return found
        if isinstance(found, StoredFloat8):
            return StoredFloat8(view.of(found.data), view.of(found.scales))
        if view.run == 1:
            assert found.some is not None, "a source of alternating rows in codes can select them"
            return replace(found, fill=found.some(view.alternate(0, view.shape[0])))
        count, fill_whole = -(-self._rows(view) // _PANEL_ROWS), found.fill
        own = view.panels(self._rows(view))
        assert own is not None, "such a view is in codes"
        if np.array_equal(own, np.arange(count)):
            return found

        def fill(out: NDArray[np.uint8]) -> None:
            whole = np.empty((count, out.shape[1]), np.uint8)
            fill_whole(whole)
            np.take(whole, own, axis=0, out=out)

        return replace(found, fill=fill)
