"""Finds thresholds per layer and key/value head, with a limit on the rise of perplexity.

Heads differ: an error that one head tolerates may harm the predictions in another. With u a
key/value head of a layer, t its thresholds, and exact attention everywhere else,

    b_u(t)      bytes of keys, values, sketches and bases read
    e_u(t)      mean square of the relative error of the output of u's query heads
    w_u         sensitivity of the model: divergence of its predictions at one t, over e_u(t)

b and e come from runs with all heads at t, those of e audited, w from one run per head. If t is
several numbers, they are varied one at a time. Errors add up: each is measured where the other
numbers leave nothing out. Bytes are those at the technique's own values, and what each number
changes of them. Small divergences add up, too. So for a given price per nat, each head takes the t
with the smallest

    b_u(t) + price * w_u e_u(t)

or stays exact. The sum of divergences that the budget allows is then found by measuring the
perplexity with all thresholds set, a few times.

The divergence is computed to second order: half the variance of the change of logits under the
exact prediction. Differences of nearly equal logarithms would be rounding noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.arrays import log_softmax
from suffice.attention.by_head import Levels, rules_at
from suffice.attention.calibration import Level, plain_level
from suffice.cache import row_bytes, types_of
from suffice.errors import InputError
from suffice.eval.perplexity import STEP_ROWS, PerplexityPlan, PerplexityTally, measure
from suffice.trace import Audit

if TYPE_CHECKING:
    from suffice.engine.runner import Runner

WINDOWS = 2  # in the runs of `look` and `weigh`
LOGITS_BYTES = 1 << 29  # limit of the exact predictions that they are compared with
TRIALS = 6
CLOSE = 0.9  # fraction of the budget that ends the search


@dataclass(frozen=True)
class Found:
    """Thresholds [L][G], and the perplexity and the reads that they give on the text."""

    thresholds: list[list[Level | None]]
    ratio: float  # of the perplexity to that of exact attention
    ratio_error: float | None
    bytes: float  # read, as a fraction of all keys and values

    def plain(self) -> dict[str, Any]:
        """Return all fields as plain values, as a calibration's file has them."""
        levels = [[plain_level(each) for each in layer] for layer in self.thresholds]
        return dataclasses.asdict(self) | {"thresholds": levels}


class Allocator:
    """Finds the thresholds `names` of a technique on windows of tokens.

    Call its steps in this order: `look`, `weigh`, `search`.
    """

    def __init__(
        self,
        runner: Runner,
        technique: Any,
        names: Sequence[str],
        windows: Sequence[list[int]],
    ) -> None:
        model = runner.decoder.config
        self._runner, self._windows = runner, windows
        self._technique, self._names = technique, names
        self._shape = len(model.cached), model.kv_heads
        self._group = model.heads // model.kv_heads
        keys, values = types_of(runner.config.kv_cache_dtype)
        sizes = [rows.size for rows in model.rows]
        # a joint row's value is read with its key
        of_values = [0] * len(sizes) if model.joint else sizes
        each = [row_bytes(keys, n) for n in sizes], [row_bytes(values, n) for n in of_values]
        self._row_bytes = np.array(each[0])[:, None], np.array(each[1])[:, None]
        self._ladders = [technique.ladders[name] for name in names]
        self._centre: Level = tuple(getattr(technique, name) for name in names)
        exact = type(technique).exact_limit()
        self._nothing: Level = tuple(getattr(exact, name) for name in names)  # is left out
        own = [each for each in product(*self._ladders) if not self._exact_at(each)]
        self._levels: tuple[Level | None, ...] = (None, *own)
        size = len(self._levels), *self._shape
        self._bytes, self._errors = np.ones(size), np.zeros(size)  # exact: all bytes, no error
        self._weights = np.zeros(self._shape)
        length = len(windows[0])
        few = LOGITS_BYTES // (4 * runner.vocabulary * min(len(windows), WINDOWS))
        self._prompt = length - min(few, length // 4) - 1

    @property
    def runs(self) -> tuple[int, int, int]:
        """Numbers of runs of the three steps; the last may take fewer."""
        return 1 + len(self._looks()), math.prod(self._shape), (1 + TRIALS) * len(self._windows)

    def look(self) -> Iterator[int]:
        """Measure bytes and errors of all heads at each threshold; yield the number of runs done.

        Raises:
            OutOfMemory: There is no memory for the windows.
        """
        self._open()
        self._exact = [log_softmax(logits) for logits in self._run(self._everywhere(None))]
        yield 1
        reads, errors = dict[Level, np.ndarray](), dict[Level, np.ndarray]()
        for done, (level, audit) in enumerate(self._looks(), start=2):
            share, error = self._looked(level, audit)
            reads[level] = share
            if error is not None:
                errors[level] = error
            yield done
        for i, values in enumerate(self._levels[1:], start=1):
            assert values is not None, "only the first level is exact"
            numbers = [*enumerate(values)]
            self._errors[i] = sum(
                errors.get(_varied(self._nothing, *each), 0.0) for each in numbers
            )
            own = reads.get(self._centre, 0.0)  # not needed for a single number
            self._bytes[i] = own + sum(
                reads[_varied(self._centre, *each)] - own for each in numbers
            )

    def _looks(self) -> list[tuple[Level, bool]]:
        """Return the levels to look at, each with whether errors are wanted, too."""
        varied = [(at, value) for at, own in enumerate(self._ladders) for value in own]
        alone = dict.fromkeys(_varied(self._nothing, *each) for each in varied)
        near = dict.fromkeys(_varied(self._centre, *each) for each in varied)
        if len(self._ladders) > 1:
            near[self._centre] = None
        allowed = [each for each in (*alone, *near) if not self._exact_at(each)]
        return [(each, each in alone) for each in dict.fromkeys(allowed)]

    def _exact_at(self, level: Level) -> bool:
        """Whether a level leaves nothing out."""
        exact = type(self._technique).exact_limit()
        own = {name: getattr(self._technique, name) for name in self._technique.ladders}
        own |= zip(self._names, level, strict=True)
        return all(value == getattr(exact, name) for name, value in own.items())

    def _looked(self, level: Level, audit: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the bytes of all heads at a level, and their errors if audited, [L, G]."""
        self._runner.audit, self._runner.trace.audit = 1 if audit else None, None
        before = self._runner.trace.copy()
        for _ in self._run(self._everywhere(level)):
            pass
        self._runner.audit = None
        read = self._runner.trace.since(before)
        keys, values, held, _, sketches = read.rows
        key, value = self._row_bytes
        share = np.ones(self._shape)  # of heads that a layer does not have
        held = held * (key + value)
        np.divide(keys * key + values * value + sketches, held, out=share, where=held > 0)
        return share, self._by_head(read.audit) if audit else None

    def weigh(self) -> Iterator[int]:
        """Measure the model's sensitivity to each head's error; yield the number of heads done."""
        several = len(self._ladders) > 1
        at = self._levels.index(self._centre) if several else 2 * len(self._levels) // 3
        for done, head in enumerate(np.ndindex(*self._shape), start=1):
            if self._errors[at][head] > 0:
                chosen = np.zeros(self._shape, np.int64)
                chosen[head] = at
                self._weights[head] = self._divergence(chosen) / self._errors[at][head]
            yield done
        self.close()

    def search(self, budget: float) -> Iterator[tuple[int, Found | None]]:
        """Find the thresholds that read least; yield the windows done and the best ones so far.

        `budget` is the fraction by which perplexity may rise.

        Raises:
            InputError: Perplexity rose by more than the budget in all trials.
        """
        exact = None
        for exact in self._measured(np.zeros(self._shape, np.int64)):
            yield self._done(exact, 0), None
        assert exact is not None
        allowed, low, high = math.log1p(budget), 0.0, math.inf
        target, best, rises = allowed, None, dict[bytes, float]()
        for trial in range(1, TRIALS + 1):
            chosen = self._cheapest(target)
            key = chosen.tobytes()
            if key not in rises:  # other targets may lead to the same levels
                before, tally = self._runner.trace.copy(), None
                for tally in self._measured(chosen):
                    yield self._done(tally, trial), best
                assert tally is not None
                rises[key] = math.log(tally.perplexity / exact.perplexity)
                if rises[key] <= allowed:
                    best = self._found(chosen, tally, exact, self._runner.trace.since(before))
            rise = rises[key]
            low, high = (target, high) if rise <= allowed else (low, target)
            least = bool((chosen == self._bytes.argmin(0)).all())
            if rise <= allowed and (rise >= CLOSE * allowed or least):
                break
            target = _next(low, high, allowed / max(rise, allowed / 4))
        if best is None:
            raise InputError(
                f"--budget={100 * budget:g}%: perplexity rose by more in all settings tried: give "
                "a larger one, or a longer text"
            )
        yield self.runs[2], best

    def close(self) -> None:
        """Free the memory of the windows."""
        for sequence in self._starts:
            self._runner.close(sequence)
        self._starts: list[Any] = []
        self._exact = []

    def _open(self) -> None:
        self._starts = []
        for window in self._windows[:WINDOWS]:
            self._starts.append(self._runner.open("calibrate", len(window)))
            self._runner.prefill(self._starts[-1], window[: self._prompt])

    def _run(self, rules: Any) -> Iterator[np.ndarray]:
        """Decode the tokens after the prompts by these rules; yield logits [R, V] of each step."""
        runner = self._runner
        runner.use(rules)
        sequences = [runner.fork(start) for start in self._starts]
        rows = max(1, STEP_ROWS // len(sequences))
        try:
            for at in range(self._prompt, len(self._windows[0]) - 1, rows):
                chains = [window[at : at + rows] for window in self._windows[: len(sequences)]]
                for sequence, chain in zip(sequences, chains, strict=True):
                    runner.reserve(sequence, len(chain))
                yield runner.advance(sequences, chains)
        finally:
            for sequence in sequences:
                runner.close(sequence)

    def _everywhere(self, level: Level | None) -> Any:
        layers, heads = self._shape
        return self._rules([[level] * heads] * layers)

    def _rules(self, levels: Levels) -> Any:
        return rules_at(self._technique, self._names, levels)

    def _by_head(self, audit: Audit | None) -> np.ndarray:
        """Return the mean squares of an audit's errors, [L, G]."""
        assert audit is not None
        squares: np.ndarray = audit.sums[1].reshape(*self._shape, self._group).mean(-1)
        return squares / audit.tokens

    def _divergence(self, chosen: np.ndarray) -> float:
        """Return the mean divergence from exact attention in nats, with levels `chosen` [L, G]."""
        total, rows = 0.0, 0
        found = self._run(self._rules(self._thresholds(chosen)))
        for logits, exact in zip(found, self._exact, strict=True):
            change, p = logits - exact, np.exp(exact)
            mean = (p * change).sum(-1, keepdims=True)
            total += float((p * (change - mean) ** 2).sum()) / 2
            rows += len(logits)
        return total / rows

    def _thresholds(self, chosen: np.ndarray) -> list[list[Level | None]]:
        return [[self._levels[level] for level in layer] for layer in chosen]

    def _cheapest(self, target: float) -> np.ndarray:
        """Return the levels [L, G] that read least with divergences of at most `target` in all."""
        harm = self._weights * self._errors
        best = np.zeros(self._shape, np.int64)
        low, high = -20.0, 40.0  # logarithms of the price
        for _ in range(60):
            price = (low + high) / 2
            chosen = (self._bytes + math.exp(price) * harm).argmin(0)
            if np.take_along_axis(harm, chosen[None], 0).sum() <= target:
                best, high = chosen, price
            else:
                low = price
        return best

    def _measured(self, chosen: np.ndarray) -> Iterator[PerplexityTally]:
        self._runner.use(self._rules(self._thresholds(chosen)))
        return measure(self._runner, self._windows, PerplexityPlan(len(self._windows[0])))

    def _done(self, tally: PerplexityTally, trial: int) -> int:
        length = len(self._windows[0]) - 1
        return trial * len(self._windows) + tally.predictions // length

    def _found(
        self, chosen: np.ndarray, tally: PerplexityTally, exact: PerplexityTally, read: Any
    ) -> Found:
        tally.reference_nll = exact.nll
        ratio, error = tally.ratio()
        return Found(
            thresholds=self._thresholds(chosen),
            ratio=ratio,
            ratio_error=error,
            bytes=read.kv_bytes_read / read.kv_bytes_held,
        )


def _varied(level: Level, at: int, value: float) -> Level:
    """Return a level with another number at one place."""
    return (*level[:at], value, *level[at + 1 :])


def _next(low: float, high: float, room: float) -> float:
    """Return the next target, between `low` (within the budget, or 0) and `high` (beyond it).

    While no target was beyond the budget, `high` is infinite, and `low` is multiplied by `room`:
    the allowed rise over the measured one.
    """
    if high == math.inf:
        return room * low
    return (low * high) ** 0.5 if low else high / 4
