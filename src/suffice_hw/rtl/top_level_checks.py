"""Checks of Scrooge's top level: gates against model, FP16 against the algorithm, cycles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from suffice_hw import _simulator
from suffice_hw.checks import Check
from suffice_hw.rtl.top_level_cycles import Times, Work, compared, timed, waves_of
from suffice_hw.rtl.top_level_model import Head, computed
from suffice_hw.rtl.top_level_run import Job, run
from suffice_hw.rtl.top_level_units import Size
from suffice_hw.scrooge.design import Design, Shape, model
from suffice_hw.scrooge.logits import Synthetic

GROUP = "top level"
SMALL = Size(4, 4, 4)
LENGTH = 1024
Floats = npt.NDArray[np.float64]


def head_of(logits: Floats, order: list[int], important: int, size: int, shares: Any) -> Head:
    """Return a head with these logits in FP16; keys and values are otherwise random."""
    source = np.random.default_rng(len(order))
    query = source.standard_normal(size)
    keys = source.standard_normal((len(order), size))
    along = query / (query @ query)
    keys += np.outer(np.sqrt(size) * logits[order] - keys @ query, along)
    values = source.standard_normal((len(order), size))
    halves = [each.astype(np.float16) for each in (query, keys, values)]
    return Head(halves[0], halves[1], halves[2], important, *shares)


def _heads(workload: str, shape: Shape, lengths: list[int]) -> list[tuple[Any, int, int]]:
    """Return decisions of the first, a middle and the last layer, with layer and length."""
    source, design = Synthetic.load(workload), Design.load()
    rule = design.rule(shape, source.key_share, source.value_share)
    found = []
    for layer in (0, shape.layers // 2, shape.layers - 1):
        _, decisions = source.steps(rule, shape, layer, 0, LENGTH, lengths)
        pairs = zip(decisions, lengths, strict=True)
        found += [(decision, layer, length) for decision, length in pairs]
    return found


def gates() -> list[Check]:
    """A head through the gates of a small top level: its output, rows and cycles."""
    source = np.random.default_rng(2)
    order = [0, *range(33, 36), *range(32, 0, -1)]
    head = head_of(2 * source.standard_normal(36), order, 4, 8, (0.9, 0.05))
    work, keys, values = _arriving(SMALL, head)
    expected = computed(SMALL, head)
    times = timed(SMALL, work, keys, values)
    ((ours, when),) = run(SMALL, [Job(head, keys, values)])
    same = ours.known == expected.known and ours.kept == expected.kept and when == times
    same = same and ours.output.tobytes() == expected.output.tobytes()
    shown = f"{ours.known} keys, {len(ours.kept)} values, {when.end} cycles"
    stated = f"{expected.known} keys, {len(expected.kept)} values, {times.end} cycles"
    what = "4 lanes of 4: a head of 36 tokens through gates and model, output bit for bit"
    return [Check(GROUP, what, stated, shown, same, "derived")]


def _arriving(size: Size, head: Head) -> tuple[Work, list[int], list[int]]:
    """Return what a head reads, with a part of a row arriving in every cycle."""
    outcome, parts = computed(size, head), head.parts(size)
    others = outcome.known - head.important
    waves, first = waves_of(head.important, others, size.lanes // parts)
    keys = [(i + 1) * size.lanes for i in range(len(head.keys))]
    return Work(parts, waves, first, len(outcome.kept)), keys, keys


def precision() -> list[Check]:
    """Keys and values that FP16 reads, compared with those of the algorithm in double precision."""
    shape = model("opt-1.3b")
    found = []
    for workload in ("s", "as"):
        source = Synthetic.load(workload)
        shares = (source.key_share, source.value_share)
        read, error = np.zeros((2, 2)), 0.0
        for decision, layer, length in _heads(workload, shape, [LENGTH // 2, LENGTH]):
            logits = np.empty(length, np.float32)
            _simulator.make_logits(source.native(shape, layer), 0, logits)
            some = set(decision.keys)
            rest = [row for row in reversed(range(length)) if row not in some]
            order = [*decision.keys, *rest]
            head = head_of(logits.astype(np.float64), order, decision.important, 64, shares)
            ours = computed(Size(), head)
            read += [[len(decision.keys), len(decision.values)], [ours.known, len(ours.kept)]]
            error = max(error, _error(head, ours.known, ours.kept, ours.output))
        ratios = read[1] / read[0] - 1
        what = f"{workload.upper()}: keys and values read in FP16, as shares of the algorithm's"
        shown = " and ".join(f"{1 + ratio:.3f}" for ratio in ratios)
        holds = bool(np.abs(ratios).max() <= 0.02)
        found.append(Check(GROUP, what, "1 +- 0.02", shown, holds, "derived"))
        what = f"{workload.upper()}: largest error of an output, of its norm"
        found.append(Check(GROUP, what, "< 1e-2", f"{error:.1e}", error < 1e-2, "derived"))
    return found


def _error(head: Head, known: int, kept: list[int], output: Any) -> float:
    """Return the error of an output, compared with the same rows in double precision."""
    query, keys, values = (x.astype(np.float64) for x in (head.query, head.keys, head.values))
    weights = np.exp(keys[:known] @ query / np.sqrt(len(query)))
    exact = weights[kept] @ values[kept] / weights.sum()
    return float(np.linalg.norm(output - exact) / np.linalg.norm(exact))


def cycles() -> list[Check]:
    """Cycles of the gates compared with those of the simulator, on the simulator's memory."""
    shape, found = model("llama-2-7b"), []
    for workload in ("s", "as"):
        for lengths in ([128], [256, 512, 768, 1024]):
            heads = _heads(workload, shape, lengths)
            times = [compared(Design.load(), shape, x, length) for x, _, length in heads]
            ours, theirs = (np.mean([_phases(pair[k]) for pair in times], 0) for k in (0, 1))
            longer = ours.sum() / theirs.sum() - 1
            phases = [f"{each:+.0f}" for each in ours - theirs]
            several = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else f"{lengths[0]}"
            what = f"{workload.upper()}, a head of {several} tokens: cycles of keys, scores, output"
            shown = f"{ours.sum():.0f} ({round(100 * longer):+d} %: {', '.join(phases)})"
            stated = " + ".join(f"{each:.0f}" for each in theirs)
            holds = bool(abs(longer) <= 0.05)
            found.append(Check(GROUP, what, stated, shown, holds, "derived"))
    return found


def _phases(times: Times) -> list[int]:
    return [times.keys_end, times.scores_end - times.keys_end, times.end - times.scores_end]


GROUPS = [gates, precision, cycles]
