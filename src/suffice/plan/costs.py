"""What a step costs, as a small model of what it computes, and on other cores.

A call of the runner takes

    linear      of its rows: every row goes through all layers; piecewise linear in the rows
    head        of its rows with logits: an amount if there are any, and one for each
    read        of the keys and values that its decode rows attend to, in rows of the cache
    pairs       of the products of a prompt's tokens with the tokens before them

All are at least 0 and fitted to measured calls by least squares of the relative error. A step adds
an overhead (Python, sampling, handing out) for itself and for each sample, and memory that is
mapped or copied takes seconds for each byte.

On other cores, what is bound by memory takes the seconds that the bytes take at the machine's
streaming rate: the weights, once a call, and the rows read. It scales with the bandwidth; the rest
of a call scales with the number of cores. The overhead, which one thread has, does neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffice.engine.protocol import Rows

KNOTS = (1, 2, 4, 8, 16, 32, 64, 96, 128)  # rows between which the cost is linear
_SWEEPS = 20_000  # of the least squares; some hundreds suffice


@dataclass(frozen=True)
class Call:
    """What a call of the runner computes.

    Attributes:
        rows: Tokens, of samples and of prompts.
        outputs: Tokens with logits.
        read: Rows of caches that decode steps attend to, summed over samples.
        pairs: Pairs of a prompt's token and a token that it attends to.
    """

    rows: float
    outputs: float = 0
    read: float = 0
    pairs: float = 0

    @classmethod
    def of(cls, batch: Sequence[Rows]) -> Call:
        """Return what a batch of rows computes."""
        rows = outputs = read = pairs = 0
        for part in batch:
            count, held = len(part.tokens) + len(part.drafts), part.sequence.cache.length
            attended = count * held + count * (count + 1) // 2
            rows += count
            outputs += part.count
            if part.prompt:
                pairs += attended
            else:
                read += attended
        return cls(rows, outputs, read, pairs)


@dataclass(frozen=True)
class Hardware:
    """What an engine has: cores, and bytes of memory it can read a second."""

    cores: float
    bandwidth: float


@dataclass(frozen=True)
class StepCosts:
    """Seconds of what a step does, on the hardware where they were measured.

    Attributes:
        linear: Seconds that each piece between two of `KNOTS` adds.
        head: Seconds of a call with logits, and of each row with logits.
        read: Seconds of a row of a cache; `pair` of a pair of tokens.
        step: Seconds of a step besides its calls; `sample` of each sample in it.
        mapped: Seconds of a byte of new memory; `copied` of a byte of a cache that is copied.
        weight_bytes: Bytes of the weights, which a call reads once.
        row_bytes: Bytes of a token's keys and values in all layers.
        hardware: Where this was measured.
    """

    linear: tuple[float, ...]
    head: tuple[float, float]
    read: float
    pair: float
    step: float
    sample: float
    mapped: float
    copied: float
    weight_bytes: float
    row_bytes: float
    hardware: Hardware

    def seconds(self, call: Call, hardware: Hardware | None = None) -> float:
        """Return the seconds of a call, by default where this was measured."""
        rows = self._rows(call.rows)
        if call.outputs:
            rows += self.head[0] + self.head[1] * call.outputs
        read, pairs = self.read * call.read, self.pair * call.pairs
        if hardware is None:
            return rows + read + pairs
        own = self.hardware
        bound = min(rows, self.weight_bytes / own.bandwidth)
        bound += min(read, call.read * self.row_bytes / own.bandwidth)
        computed = rows + read + pairs - bound
        memory = own.bandwidth / hardware.bandwidth
        return bound * memory + computed * own.cores / hardware.cores

    def overhead(self, samples: int) -> float:
        """Return the seconds of a step besides its calls."""
        return self.step + self.sample * samples

    def _rows(self, rows: float) -> float:
        total, before = 0.0, 0
        for knot, cost in zip(KNOTS, self.linear, strict=True):
            if rows <= knot:
                return total + cost * (rows - before) / (knot - before)
            total, before = total + cost, knot
        return total + self.linear[-1] * (rows - before) / (KNOTS[-1] - KNOTS[-2])


@dataclass(frozen=True)
class Residual:
    """How far a fit is from its measurements: relative errors, and their number."""

    median: float
    p95: float
    measured: int

    @classmethod
    def of(cls, predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Residual:
        """Return the spread of the relative errors."""
        errors = np.abs(predicted / measured - 1)
        median, p95 = np.percentile(errors, (50, 95)).tolist()
        return cls(median, p95, len(measured))


def features(call: Call) -> list[float]:
    """Return what multiplies the costs of a call: of rows by `KNOTS`, head, read and pairs."""
    before, found = 0, []
    for knot in KNOTS:
        most = math.inf if knot == KNOTS[-1] else 1.0
        found.append(min(max((call.rows - before) / (knot - before), 0.0), most))
        before = knot
    return [*found, float(call.outputs > 0), call.outputs, call.read, call.pairs]


def fitted(
    calls: Sequence[Call], seconds: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, float], float, float, Residual]:
    """Return the costs of calls that explain measured seconds best, and what they leave.

    They are `linear`, `head`, `read` and `pair` of `StepCosts`.
    """
    measured = np.array(seconds, np.float64)
    matrix = np.array([features(call) for call in calls], np.float64)
    costs = nonnegative(matrix / measured[:, None], np.ones(len(measured)))
    count = len(KNOTS)
    linear, rest = tuple(costs[:count].tolist()), costs[count:].tolist()
    residual = Residual.of(matrix @ costs, measured)
    return linear, (rest[0], rest[1]), rest[2], rest[3], residual


def nonnegative(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the x >= 0 that minimizes |matrix x - target|, by coordinate descent.

    `matrix` is [measurements, costs]. A cost that no measurement contains is 0.
    """
    sizes = np.sqrt((matrix**2).sum(0))
    used = sizes > 0
    scaled = matrix[:, used] / sizes[used]
    gram, wanted = scaled.T @ scaled, scaled.T @ target
    found = np.zeros(len(wanted))
    for _ in range(_SWEEPS):
        before = found.copy()
        for at in range(len(found)):
            found[at] = max(0.0, found[at] + wanted[at] - gram[at] @ found)
        if np.abs(found - before).max() <= 1e-12 * max(found.max(), 1e-300):
            break
    costs = np.zeros(matrix.shape[1])
    costs[used] = found / sizes[used]
    return costs
