"""Scrooge and its baseline on a workload: rows read in all steps, and the time they take.

The functional pass runs every step. Cycles are simulated for some heads at some lengths, and
interpolated in between. The baseline is the same design without early termination. The paper does
not say whether a head's keys are fetched while the previous head still waits for its values, so
each design has two times:

    serial      one head after the other
    overlapped  limited by the memory alone: the upper bound of overlapping
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from suffice.errors import InputError
from suffice_hw import _simulator
from suffice_hw.dram.model import Outcome, outcome
from suffice_hw.dram.part import Part
from suffice_hw.scrooge.design import Design, Shape
from suffice_hw.scrooge.logits import Source

Floats = npt.NDArray[np.float64]
_BASELINE_REFRESHES = 10  # per channel, in a simulation of the baseline at one length
_HEAD_ROWS = 4096  # tokens of a head that the memory has room for


@dataclass(frozen=True)
class Result:
    """Rows and cycles of a whole workload, by layer [L], summed over all steps."""

    keys_read: Floats
    values_read: Floats
    rows_held: Floats  # dense rows of keys, and equally many of values
    waves: Floats  # of keys that are not important
    wasted_keys: Floats  # keys that arrived after the stop; not in keys_read
    extra_bytes: float  # queries and indices
    row_bytes: int
    serial_cycles: Floats
    overlapped_cycles: float
    baseline_serial_cycles: float
    baseline_overlapped_cycles: float
    memory: Outcome  # of Scrooge, heads one after the other
    baseline_memory: Outcome

    @property
    def key_reduction(self) -> float:
        """Key rows of the baseline over those read, wasted ones not counted."""
        return float(self.rows_held.sum() / self.keys_read.sum())

    @property
    def value_reduction(self) -> float:
        """Value rows of the baseline over those read."""
        return float(self.rows_held.sum() / self.values_read.sum())

    @property
    def reduction(self) -> float:
        """Bytes of keys and values of the baseline over those read."""
        read = self.keys_read.sum() + self.values_read.sum()
        return float(2 * self.rows_held.sum() / read)

    @property
    def reduction_with_waste(self) -> float:
        """The same with wasted keys counted as read."""
        read = self.keys_read.sum() + self.values_read.sum() + self.wasted_keys.sum()
        return float(2 * self.rows_held.sum() / read)

    @property
    def speedup(self) -> float:
        """Time of the baseline over that of Scrooge, both with one head after the other."""
        return float(self.baseline_serial_cycles / self.serial_cycles.sum())

    @property
    def overlapped_speedup(self) -> float:
        """Time of the baseline over that of Scrooge, if heads overlap perfectly in both."""
        return self.baseline_overlapped_cycles / self.overlapped_cycles

    @property
    def least_speedup(self) -> float:
        """Time of a baseline with overlap over that of Scrooge without.

        Overlap is easier for the baseline, because it knows in advance which rows it reads.
        """
        return float(self.baseline_overlapped_cycles / self.serial_cycles.sum())

    @property
    def baseline_bytes(self) -> float:
        """Bytes that the baseline reads: all keys and values, summed over steps."""
        return float(2 * self.rows_held.sum() * self.row_bytes)


def strata(tokens: int, count: int) -> list[int]:
    """Return `count` lengths from 1 to `tokens` in equal steps, both ends included."""
    return sorted({round(1 + i * (tokens - 1) / max(count - 1, 1)) for i in range(count)})


def run(
    design: Design,
    shape: Shape,
    source: Source,
    thresholds: tuple[float, float],
    tokens: int = 1024,
    sampled_heads: int = 1,
    sampled_lengths: int = 16,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Run a workload: `tokens` decode steps of one sequence, from an empty cache.

    Args:
        design: The accelerator.
        shape: The model.
        source: The logits.
        thresholds: thr_k and thr_v.
        tokens: Number of steps.
        sampled_heads: Number of key/value heads per layer that are simulated, to represent all.
        sampled_lengths: Number of lengths at which cycles are simulated.
        report: Called with the work done and the total work.

    Raises:
        InputError: A count is out of range, or the workload exceeds the memory or the source.
    """
    _check(design, shape, tokens, sampled_heads, sampled_lengths)
    lengths = strata(tokens, sampled_lengths)
    heads = [i * shape.kv_heads // sampled_heads for i in range(sampled_heads)]
    work = shape.layers + len(lengths)
    rule = design.rule(shape, *thresholds)
    rows = np.zeros((3, shape.layers))
    kept: list[list[Any]] = []  # of each layer and head, decisions by length
    for layer, head in itertools.product(range(shape.layers), heads):
        totals, decisions = source.steps(rule, shape, layer, head, tokens, lengths)
        rows[:, layer] += totals.sum(1)
        kept.append(decisions)
        report(layer + 1, work)
    found, start = [], _start_ns(design.part())
    for i, length in enumerate(lengths):
        step, start = _cycles(design, shape, heads, [each[i] for each in kept], length, start)
        found.append(step)
        report(shape.layers + i + 1, work)
    share = shape.kv_heads / sampled_heads
    columns = {k: _integrated(lengths, [e[k] for e in found], tokens) * share for k in found[0]}
    keys, values, waves = rows * share
    return Result(
        keys_read=keys,
        values_read=values,
        rows_held=np.full(shape.layers, tokens * (tokens + 1) / 2 * shape.kv_heads),
        waves=waves,
        wasted_keys=columns["wasted"],
        extra_bytes=float(tokens * shape.layers * shape.kv_heads * _extra_bytes(design, shape)),
        row_bytes=shape.row_bytes,
        serial_cycles=columns["serial"],
        overlapped_cycles=float(columns["overlapped"][0]),
        baseline_serial_cycles=float(columns["baseline_serial"][0]),
        baseline_overlapped_cycles=float(columns["baseline_overlapped"][0]),
        memory=_outcome("scrooge", columns, float(columns["serial"].sum())),
        baseline_memory=_outcome("baseline", columns, float(columns["baseline_serial"][0])),
    )


def _outcome(name: str, columns: dict[str, Floats], ns: float) -> Outcome:
    """Return the memory's counts, without latencies."""
    reads, activates, refreshes, hits, closed, conflicts, active = columns[name]
    return Outcome(
        reads=round(float(reads)),
        writes=0,
        activates=float(activates),
        refreshes=float(refreshes),
        hits=float(hits),
        closed=float(closed),
        conflicts=float(conflicts),
        active_ns=float(active),
        ns=ns,
        mean_latency_ns=0.0,
    )


def _check(design: Design, shape: Shape, tokens: int, heads: int, lengths: int) -> None:
    if not 1 <= tokens <= _HEAD_ROWS:
        raise InputError(f"tokens={tokens}: must be in [1, {_HEAD_ROWS}]")
    if not 1 <= heads <= shape.kv_heads:
        raise InputError(
            f"sampled_heads={heads}: must be in [1, {shape.kv_heads}], those of {shape.name}"
        )
    if lengths < 2:
        raise InputError(f"sampled_lengths={lengths}: must be at least 2, the first and the last")
    needed = 2 * shape.layers * shape.kv_heads * _HEAD_ROWS * shape.row_bytes
    if needed >= design.part().size_bytes:
        raise InputError(f"{shape.name}: keys and values do not fit into {design.memory}")


def _extra_bytes(design: Design, shape: Shape, baseline: bool = False) -> int:
    group = shape.heads // shape.kv_heads
    query = group * shape.row_bytes if design.query_traffic else 0
    return query if baseline else query + design.metadata_bytes


def _integrated(lengths: list[int], values: list[Any], tokens: int) -> Floats:
    """Return the sum of each column over 1..tokens, interpolated from values at some lengths."""
    columns = np.array(values, np.float64).reshape(len(lengths), -1)
    steps = np.arange(1, tokens + 1)
    return np.array([np.interp(steps, lengths, column).sum() for column in columns.T])


def simulation(design: Design, part: Part, shape: Shape, baseline: bool = False) -> Any:
    """Return a simulator of the accelerator with its memory, at time 0."""
    ahead = design.baseline_prefetch_bytes if baseline else design.prefetch_bytes
    latencies = [
        float(design.pipe_cycles),
        float(design.etu_cycles),
        float(design.softmax_cycles),
        float(design.sum_cycles),
    ]
    return _simulator.simulation(
        part.native,
        shape.row_bytes,
        design.wave(shape),
        shape.heads // shape.kv_heads,
        max(ahead // shape.row_bytes, 1),
        design.softmax_width,
        latencies,
        design.early_values,
        part.tck_ns,
        part.controller_ns,
        _extra_bytes(design, shape, baseline),
    )


def place(shape: Shape, layer: int, kv_head: int) -> list[int]:
    """Return the addresses of a head's keys, its values, and its query and indices."""
    size = _HEAD_ROWS * shape.row_bytes
    index = layer * shape.kv_heads + kv_head
    after = 2 * shape.layers * shape.kv_heads * size
    return [2 * index * size, (2 * index + 1) * size, after + index * 4096]


def _counted(run: Any, part: Part, share: float = 1.0) -> list[float]:
    counts = outcome(part, run.finish())
    names = ("reads", "activates", "refreshes", "hits", "closed", "conflicts", "active_ns")
    return [getattr(counts, name) * share for name in names]


def _cycles(
    design: Design,
    shape: Shape,
    heads: list[int],
    decisions: list[Any],
    length: int,
    start: float,
) -> tuple[dict[str, list[float]], float]:
    """Return the columns of one step of the sampled heads, and the start time of the next length.

    Columns are cycles, by layer or in total, and memory counts. The start time continues the
    refresh interval from one length to the next.
    """
    part = design.part()
    places = [place(shape, layer, head) for layer in range(shape.layers) for head in heads]
    serial, wasted = np.zeros(shape.layers), np.zeros(shape.layers)
    scrooge = simulation(design, part, shape)
    now = start
    for i, (decision, where) in enumerate(zip(decisions, places, strict=True)):
        _, _, end, lost = scrooge.run_head(decision, length, where, now)
        serial[i // len(heads)] += end - now
        wasted[i // len(heads)] += lost
        now = end
    stream = simulation(design, part, shape)
    overlapped = stream.run_stream(decisions, [length] * len(places), places, start) - start
    columns = {
        "serial": serial.tolist(),
        "wasted": wasted.tolist(),
        "overlapped": [overlapped],
        "scrooge": _counted(scrooge, part),
    } | _baseline_cycles(design, part, shape, len(places), length)
    return columns, now % part.trefi_ns


def _start_ns(part: Part) -> float:
    """Return the start of a simulation: half an interval before the first refresh, the mean."""
    return part.trefi_ns / 2


def _baseline_heads(part: Part, shape: Shape, length: int) -> int:
    """Return the number of simulated heads that represent all; reads are equal in all heads."""
    head_ns = 2 * length * shape.row_bytes / part.peak_bytes_per_ns
    needed = math.ceil(_BASELINE_REFRESHES * part.trefi_ns / head_ns)
    return min(needed, shape.layers * shape.kv_heads)


@functools.cache  # the baseline is the same for every workload
def _baseline_cycles(
    design: Design, part: Part, shape: Shape, sampled: int, length: int
) -> dict[str, list[float]]:
    """Return the same columns for `sampled` heads of the baseline, which read all rows."""
    rows = list(range(length))
    everything = _simulator.Decision(rows, rows, length, 0)
    count = _baseline_heads(part, shape, length)
    some = [place(shape, *divmod(i, shape.kv_heads)) for i in range(count)]
    share = sampled / count
    serial = simulation(design, part, shape, baseline=True)
    start = now = _start_ns(part)
    for where in some:
        _, _, now, _ = serial.run_head(everything, length, where, now)
    stream = simulation(design, part, shape, baseline=True)
    overlapped = stream.run_stream([everything] * count, [length] * count, some, start) - start
    return {
        "baseline_serial": [(now - start) * share],
        "baseline_overlapped": [overlapped * share],
        "baseline": _counted(serial, part, share),
    }
