"""What a run did: rows and bytes of keys, values and weights read, of how many held."""

from __future__ import annotations

import numpy as np

_COUNTS = ("steps", "kv_bytes_read", "sketch_bytes_read", "kv_bytes_held", "weight_bytes_read")


class Trace:
    """Totals over the decode steps of a run, rows by layer and key/value head.

    A row is one token's key (or value) in one layer and one head. `rows` is int64 [4, L, G]: rows
    of keys read, of values read, held, and of values that each of the `group` query heads that
    share them alone would have read, added up; the native step adds to it. Rows and bytes count
    for every token that they are read for, also where tokens of a step share them. `missing` is the
    largest share of a softmax's sum that a step left out, as its technique bounds or estimates it.
    """

    def __init__(self, layers: int, kv_heads: int, group: int = 1) -> None:
        self.rows = np.zeros((4, layers, kv_heads), np.int64)
        self.group = group
        self.steps = 0
        self.kv_bytes_read = 0
        self.sketch_bytes_read = 0  # of the bytes above
        self.kv_bytes_held = 0
        self.weight_bytes_read = 0
        self.missing = 0.0

    @property
    def key_rows_read(self) -> int:
        """Rows of keys read, in all layers and heads."""
        return int(self.rows[0].sum())

    @property
    def value_rows_read(self) -> int:
        """Rows of values read, in all layers and heads."""
        return int(self.rows[1].sum())

    @property
    def rows_held(self) -> int:
        """Rows of keys, or of values, that attention to every cached token would have read."""
        return int(self.rows[2].sum())

    @property
    def key_fraction(self) -> float:
        """Fraction of the held key rows that were read."""
        return self.key_rows_read / self.rows_held if self.rows_held else 0.0

    @property
    def value_fraction(self) -> float:
        """Fraction of the held value rows that were read."""
        return self.value_rows_read / self.rows_held if self.rows_held else 0.0

    @property
    def head_value_fraction(self) -> float:
        """Fraction of the held value rows that a query head alone would have read, on average."""
        held = self.rows_held * self.group
        return int(self.rows[3].sum()) / held if held else 0.0

    def copy(self) -> Trace:
        """Return the totals as they are now."""
        return self._made(self.rows, {name: getattr(self, name) for name in _COUNTS})

    def since(self, before: Trace) -> Trace:
        """Return what was added since a copy was taken."""
        counts = {name: getattr(self, name) - getattr(before, name) for name in _COUNTS}
        return self._made(self.rows - before.rows, counts)

    def plain(self) -> dict[str, object]:
        """Return the totals as plain values, rows as lists [L][H]."""
        keys, values, held, alone = self.rows.tolist()
        return {name: getattr(self, name) for name in _COUNTS} | {
            "key_rows_read": keys,
            "value_rows_read": values,
            "value_rows_alone": alone,
            "heads_per_group": self.group,
            "rows_held": held,
            "missing": self.missing,
        }

    def _made(self, rows: np.ndarray, counts: dict[str, int]) -> Trace:
        made = Trace(*self.rows.shape[1:], self.group)
        made.rows[:] = rows
        made.missing = self.missing
        for name, count in counts.items():
            setattr(made, name, count)
        return made
