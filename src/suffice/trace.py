"""Counts of a run: rows and bytes of keys, values and weights that were read.

An audited step also computes exact attention, in addition to its technique. A query is a token in
one layer and query head. With o the output and Z the sum of weights e^x, each query has

    missing     share of Z whose keys or values were not read; where weights are estimated, as in
                `tiers`, the total variation distance to the exact softmax, which is the same where
                the others are exact; undefined if weights are coded
    error       |o - o_exact| / |o_exact|
    bound       largest `missing` that the technique certifies, if it certifies any, or that it
                has at a confidence
    shift       |o - o_exact| over the length of the longest value, without the rounding of sums, if
                the technique bounds it
    shift_bound its bound

Exact attention here is to the keys that the layer still holds. Evicted keys are in neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_COUNTS = (
    *("steps", "kv_bytes_read", "sketch_bytes_read", "kv_bytes_held", "weight_bytes_read"),
    *("experts_read", "experts_held", "expert_bytes_read", "expert_bytes_held"),
    *("experts_left_out", "tile_rows_read", "tile_rows_held", "state_bytes_moved"),
)


@dataclass(frozen=True)
class BoundSums:
    """Sums of `missing` and `shift` over `softmaxes` whose bounds, or estimates, are known.

    A softmax here is a token's in one layer and key/value head: the worst of the query heads that
    share it. A `missing` above 1 counts as 1, a `shift` above 2 as 2: neither can be more.
    """

    softmaxes: int = 0
    missing: float = 0.0
    shift: float = 0.0

    def plus(self, other: BoundSums, sign: int = 1) -> BoundSums:
        """Return both sums together, or, with a `sign` of -1, this one without the other."""
        return BoundSums(
            self.softmaxes + sign * other.softmaxes,
            self.missing + sign * other.missing,
            self.shift + sign * other.shift,
        )

    @property
    def means(self) -> tuple[float, float] | None:
        """The means of `missing` and `shift`, which bound the means of what they bound."""
        count = self.softmaxes
        return (self.missing / count, self.shift / count) if count else None


@dataclass
class Reads:
    """What one request read, over all layers and heads; see `Trace` for the words."""

    key_rows: int = 0
    value_rows: int = 0
    rows_held: int = 0
    bytes_read: int = 0
    bytes_held: int = 0
    missing: float = 0.0
    shift: float = 0.0
    tile_rows_read: int = 0
    tile_rows_held: int = 0
    state_bytes_moved: int = 0
    bounds: BoundSums = BoundSums()
    audited: int = 0  # tokens; the figures below are the largest of their queries
    audited_missing: float = 0.0
    audited_error: float = 0.0

    def audit(self, found: np.ndarray) -> None:
        """Note the queries of an audited step, [5, L, T, H]; see `Audit.add`."""
        self.audited = found.shape[2]
        self.audited_missing, self.audited_error = map(float, found[:2].max((1, 2, 3)))

    def add(self, other: Reads) -> None:
        """Add the reads of another step."""
        self.key_rows += other.key_rows
        self.value_rows += other.value_rows
        self.rows_held += other.rows_held
        self.bytes_read += other.bytes_read
        self.bytes_held += other.bytes_held
        self.missing = max(self.missing, other.missing)
        self.shift = max(self.shift, other.shift)
        self.tile_rows_read += other.tile_rows_read
        self.tile_rows_held += other.tile_rows_held
        self.state_bytes_moved += other.state_bytes_moved
        self.bounds = self.bounds.plus(other.bounds)
        self.audited += other.audited
        self.audited_missing = max(self.audited_missing, other.audited_missing)
        self.audited_error = max(self.audited_error, other.audited_error)


_OCTAVES, _STEPS, _TOP = 32, 8, 12  # histogram from 2^-20 to 2^12, eight bins per factor of 2
_TOLERANCE = 1e-5  # of a bound, because the exact sum of weights is computed in float32


def unaudited(layers: int, rows: int, heads: int) -> np.ndarray:
    """Return what the core's audit of a step fills, float32 [5, L, T, H]; see `Audit.add`."""
    found = np.zeros((5, layers, rows, heads), np.float32)
    found[2:] = np.nan
    return found


class Audit:
    """Sums, maxima and histograms over audited queries; arrays are [L, H] unless noted."""

    def __init__(self, layers: int, heads: int) -> None:
        self.tokens = 0
        self.beyond = 0  # queries whose `missing` or `shift` exceeds its bound
        # Of `missing`, `error`, `bound` over `missing`, `shift` and its bound over it: sums (of
        # squares of `error`), maxima, and histograms.
        self.sums = np.zeros((5, layers, heads))
        self.most = np.zeros((5, layers, heads))
        self.counts = np.zeros((5, _OCTAVES * _STEPS + 1), np.int64)

    def add(self, found: np.ndarray) -> None:
        """Add the queries of a step, float32 [5, L, T, H]: `missing`, `error`, `bound`, `shift` and
        `shift_bound`."""
        missing, error, bound, shift, shift_bound = found.astype(np.float64)
        self.tokens += missing.shape[1]
        self.beyond += int(
            ((missing > bound + _TOLERANCE) | (shift > shift_bound + _TOLERANCE)).sum()
        )
        loose, loose_shift = _over(bound, missing), _over(shift_bound, shift)
        known = (*map(np.nan_to_num, (loose, shift, loose_shift)),)
        self.sums += np.stack([missing, error * error, *known]).sum(2)
        self.most = np.maximum(self.most, np.stack([missing, error, *known]).max(2))
        all_figures = missing, error, loose, shift, loose_shift
        for counts, values in zip(self.counts, all_figures, strict=True):
            finite = values[np.isfinite(values)]
            octaves = np.log2(np.maximum(finite, 2.0 ** (_TOP - _OCTAVES))) - (_TOP - _OCTAVES)
            bins = np.ceil(octaves * _STEPS).clip(0, len(counts) - 1).astype(np.int64)
            counts += np.bincount(bins, minlength=len(counts))

    def plain(self) -> dict[str, object]:
        """Return the figures over all queries; percentiles are rounded up by at most 9 %."""
        queries = self.queries
        found: dict[str, object] = {"tokens": self.tokens, "beyond_bound": self.beyond}
        if np.isfinite(self.sums[0]).all():
            half = _bin_of(0.5)
            found["missing"] = self._figures(0, float(self.sums[0].sum()) / queries) | {
                "above_half": int(self.counts[0, half + 1 :].sum()) / queries
            }
        found["error"] = self._figures(1, float(self.sums[1].sum() / queries) ** 0.5)
        for which, name in ((2, "bound_over_missing"), (3, "shift"), (4, "bound_over_shift")):
            if known := int(self.counts[which].sum()):
                median = {"median": self._percentile(which, 0.5)}
                found[name] = median | self._figures(which, float(self.sums[which].sum()) / known)
        return found

    def _figures(self, which: int, mean: float) -> dict[str, float]:
        """Return mean (root mean square for errors), 99.9th percentile and maximum."""
        most = float(self.most[which].max())
        return {"mean": mean, "p99.9": self._percentile(which, 0.999), "most": most}

    def _percentile(self, which: int, share: float) -> float:
        counts = self.counts[which].cumsum()
        at = int(np.searchsorted(counts, share * counts[-1]))
        edge = 0.0 if at == 0 else 2.0 ** (at / _STEPS + _TOP - _OCTAVES)
        return min(edge, float(self.most[which].max()))

    @property
    def queries(self) -> int:
        """Audited queries: tokens in one layer and query head."""
        return self.tokens * int(self.sums[0].size)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and query heads."""
        layers, heads = self.sums.shape[1:]
        return layers, heads

    def copy(self) -> Audit:
        """Return a copy of the figures."""
        return self.since(Audit(*self.shape))

    def since(self, before: Audit) -> Audit:
        """Return the figures added since the copy `before`; maxima are those of the whole run."""
        made = Audit(*self.shape)
        made.tokens, made.beyond = self.tokens - before.tokens, self.beyond - before.beyond
        made.sums, made.counts = self.sums - before.sums, self.counts - before.counts
        made.most = self.most.copy()
        return made


def _over(bound: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return a bound over what it bounds, NaN where that is nearly nothing or not known."""
    found: np.ndarray = np.full_like(value, np.nan)
    np.divide(bound, value, out=found, where=value > _TOLERANCE)
    return found


def _bin_of(value: float) -> int:
    return int((np.log2(value) - (_TOP - _OCTAVES)) * _STEPS)


class Trace:
    """Totals over the decode steps of a run; rows by layer and key/value head.

    A row is one token's key (or value) in one layer and one head. The native step adds to `rows`,
    int64 [5, L, G]:

        0   key rows read
        1   value rows read
        2   dense rows: those that attention to all tokens so far would have read
        3   value rows that each of the `group` query heads would have read alone, summed
        4   bytes read of sketches, bases and boxes, which are not rows

    Rows and bytes are counted for every token they are read for, even if tokens of a step share a
    read. Experts of all layers are counted once a step, those read and all, however many rows go to
    them. `experts_left_out` are those of rows that a technique left out, and `experts_missing` the
    largest share of a row's weights that they had. `missing` is the largest share of a softmax that
    a step left unread, as its technique bounds or estimates it. `tile_rows_read` are the key rows
    that tiles of prompts read, of `tile_rows_held`, if they may leave something unread.
    `state_bytes_moved` are bytes of layers' states, which a step reads once and writes once for
    each request. `audit` has the figures of audited steps, None if there were none.
    `cached` are the tokens and the bytes that the cache of the last finished sample held at its
    end; `plain_row_bytes` are the bytes of a key and its value in the model's own type, by layer
    (none: not known), and `plain_token_bytes` those of a token that a cache holds.
    `estimates`: the softmax has estimated weights, so `missing` is its distance to the exact one,
    and `shift` the bound on how far that and estimated values move an output, over the length of
    the longest value that the token sees. `bounds`: the sums of both over all softmaxes.
    `confidence`: the probability with which the bound of one softmax holds; 1 is certain.
    """

    def __init__(self, layers: int, kv_heads: int, group: int = 1) -> None:
        self.rows = np.zeros((5, layers, kv_heads), np.int64)
        self.group = group
        self.steps = 0
        self.kv_bytes_read = 0
        self.sketch_bytes_read = 0  # included in kv_bytes_read
        self.kv_bytes_held = 0
        self.weight_bytes_read = 0
        self.experts_read = 0
        self.experts_held = 0
        self.expert_bytes_read = 0  # included in weight_bytes_read
        self.expert_bytes_held = 0
        self.experts_left_out = 0
        self.experts_missing = 0.0
        self.tile_rows_read = self.tile_rows_held = self.state_bytes_moved = 0
        self.growth_bytes_copied = 0  # of keys and values, when caches grew
        self.missing = self.shift = 0.0
        self.bounds = BoundSums()
        self.cached = (0, 0)
        self.plain_row_bytes: tuple[int, ...] = ()
        self.plain_token_bytes = 0
        self.estimates = False
        self.confidence = 1.0
        self.audit: Audit | None = None

    @property
    def key_rows_read(self) -> int:
        """Key rows read, in all layers and heads."""
        return int(self.rows[0].sum())

    @property
    def value_rows_read(self) -> int:
        """Value rows read, in all layers and heads."""
        return int(self.rows[1].sum())

    @property
    def rows_held(self) -> int:
        """Key rows (or value rows) that attention to all tokens so far would have read.

        Rows that a policy evicted and rows before a sliding window are included.
        """
        return int(self.rows[2].sum())

    @property
    def key_fraction(self) -> float:
        """Key rows read, as a fraction of the dense rows."""
        return self.key_rows_read / self.rows_held if self.rows_held else 0.0

    @property
    def value_fraction(self) -> float:
        """Value rows read, as a fraction of the dense rows."""
        return self.value_rows_read / self.rows_held if self.rows_held else 0.0

    @property
    def head_value_fraction(self) -> float:
        """Value rows that a query head alone would have read, as a mean fraction of dense rows."""
        held = self.rows_held * self.group
        return int(self.rows[3].sum()) / held if held else 0.0

    def add(self, counts: Any, *, steps: int, state_bytes: int = 0) -> None:
        """Add the bytes of native `Counts`, and those of states that were moved; the native step
        has already added its rows."""
        self.steps += steps
        self.kv_bytes_read += counts.kv_bytes + counts.sketch_bytes
        self.sketch_bytes_read += counts.sketch_bytes
        self.kv_bytes_held += counts.dense_bytes
        self.state_bytes_moved += state_bytes
        self.weight_bytes_read += counts.weight_bytes
        self.experts_read += counts.experts_read
        self.experts_held += counts.experts_held
        self.expert_bytes_read += counts.expert_bytes_read
        self.expert_bytes_held += counts.expert_bytes_held
        self.experts_left_out += counts.visits_left_out
        self.experts_missing = max(self.experts_missing, counts.share_left_out)
        self.missing = max(self.missing, counts.missing)
        self.shift = max(self.shift, counts.shift)
        self.bounds = self.bounds.plus(BoundSums(*counts.bounds))

    def add_tiles(self, counts: Any) -> None:
        """Add what tiles of prompts read, of native `Counts`."""
        self.tile_rows_read += counts.tile_rows_read
        self.tile_rows_held += counts.tile_rows_held

    def copy(self) -> Trace:
        """Return a copy of the totals."""
        made = self._made(self.rows, {name: getattr(self, name) for name in _COUNTS})
        made.audit = self.audit and self.audit.copy()
        return made

    def add_audit(self, found: np.ndarray) -> None:
        """Add the queries of an audited step, float32 [5, L, T, H]; see `Audit.add`."""
        self.audit = self.audit or Audit(found.shape[1], found.shape[3])
        self.audit.add(found)

    def since(self, before: Trace) -> Trace:
        """Return the totals added since the copy `before`."""
        counts = {name: getattr(self, name) - getattr(before, name) for name in _COUNTS}
        made = self._made(self.rows - before.rows, counts)
        made.bounds = self.bounds.plus(before.bounds, -1)
        made.audit = self.audit and self.audit.since(before.audit or Audit(*self.audit.shape))
        return made

    def plain(self) -> dict[str, object]:
        """Return the totals as plain values, rows as lists [L][H]; of states if there are any."""
        keys, values, held, alone = self.rows[:4].tolist()
        means = self.bounds.means
        counts = {name: getattr(self, name) for name in _COUNTS}
        if not self.state_bytes_moved:
            del counts["state_bytes_moved"]
        audit = {"audit": self.audit.plain()} if self.audit and self.audit.tokens else {}
        return (
            counts
            | audit
            | {
                "key_rows_read": keys,
                "value_rows_read": values,
                "value_rows_alone": alone,
                "heads_per_group": self.group,
                "rows_held": held,
                "missing": self.missing,
                "shift": self.shift,
                "missing_mean": means and means[0],
                "shift_mean": means and means[1],
                "confidence": self.confidence,
                "experts_missing": self.experts_missing,
            }
        )

    def _made(self, rows: np.ndarray, counts: dict[str, int]) -> Trace:
        made = Trace(*self.rows.shape[1:], self.group)
        made.rows[:] = rows
        made.missing, made.shift, made.cached = self.missing, self.shift, self.cached
        made.bounds = self.bounds
        made.plain_row_bytes, made.estimates = self.plain_row_bytes, self.estimates
        made.plain_token_bytes = self.plain_token_bytes
        made.experts_missing, made.confidence = self.experts_missing, self.confidence
        for name, count in counts.items():
            setattr(made, name, count)
        return made
