"""Checks on a model's own logits, compared with the paper's other models."""

from __future__ import annotations

from pathlib import Path

from suffice.errors import InputError
from suffice_hw.checks import Check, within
from suffice_hw.runs import read_summary
from suffice_hw.scrooge import simulate
from suffice_hw.scrooge.checks import PAPER, PUBLISHED
from suffice_hw.scrooge.design import Design
from suffice_hw.scrooge.logits import Trace
from suffice_hw.scrooge.plot import LOSSES
from suffice_hw.scrooge.report import FIELDS, SCHEMA

THRESHOLDS = {"s": (0.9, 0.001), "as": (0.6, 0.005)}  # the paper's for LLaMA-2
BAR = 0.15
OTHERS = "published: the mean over OPT and LLaMA-2 models of 1.3B to 13B; here: {}"


def simulated(trace: Trace, thresholds: tuple[float, float], lengths: int = 16) -> simulate.Result:
    """Run the default design on a trace, with all heads, and cycles at `lengths` lengths.

    Raises:
        InputError: The trace cannot be run.
    """
    return simulate.run(
        Design.load(),
        trace.shape,
        trace,
        thresholds,
        tokens=trace.tokens,
        sampled_heads=trace.kv_heads,
        sampled_lengths=lengths,
    )


def of(trace: Trace, lengths: int = 16) -> list[Check]:
    """Return the checks of a trace, with all heads, and cycles at `lengths` lengths.

    Raises:
        InputError: The trace cannot be run.
    """
    found = []
    other = OTHERS.format(f"{trace.model}, {trace.tokens} tokens")
    for mode, thresholds in THRESHOLDS.items():
        result = simulated(trace, thresholds, lengths)
        keys, values, total, faster, _ = PUBLISHED[mode]
        rows = (
            ("model's traffic", "K traffic, times less", keys, result.key_reduction),
            ("model's traffic", "V traffic, times less", values, result.value_reduction),
            ("model's traffic", "K and V, times less", total, result.reduction),
            ("model's speed-up", "speed-up, head after head", faster, result.speedup),
        )
        for group, what, published, ours in rows:
            holds = within(ours, published, BAR)
            shown = f"{trace.model}, {mode.upper()}: {what}"
            why = "" if holds else other
            source = f"{PAPER}, VI-B"
            found.append(Check(group, shown, f"{published}", f"{ours:.2f}", holds, source, why))
        found.append(_later_layers(trace, mode, result, other))
    return found


def by_loss(folders: list[Path]) -> list[Check]:
    """Return the speed-up by loss of runs of `hw run --perplexity-loss`.

    Raises:
        InputError: A folder holds no run of scrooge, or one without a rise of perplexity.
    """
    points = []
    for folder in folders:
        summary = read_summary(folder, {SCHEMA: FIELDS})
        if summary.get("perplexity_loss_percent") is None:
            raise InputError(f"{folder}: has no perplexity loss: run it with --perplexity-loss")
        points.append((summary["perplexity_loss_percent"], summary["speedup"], summary["model"]))
    points.sort()
    name = ", ".join(sorted({model for *_, model in points}))
    speeds = [speed for _, speed, _ in points]
    rises = speeds == sorted(speeds)
    shown = ", ".join(f"{speed:.2f} at {loss:g} %" for loss, speed, _ in points)
    other = f"published: the mean over OPT and LLaMA-2 models of 6.7B to 13B; here: {name}"
    source = f"{PAPER}, Fig. 9"
    what = f"{name}: speed-up by perplexity lost"
    found = [Check("speed-up by loss", what, "rises", shown, rises, source, "" if rises else other)]
    if len(points) < 2:
        why = "one run does not rise: give at least two"
        found = [Check("speed-up by loss", what, "rises", shown, False, source, why, ran=False)]
    published = LOSSES[1.0]
    ours = max((speed for loss, speed, _ in points if loss <= 1), default=1.0)
    holds = within(ours, published, 0.2)
    what = f"{name}: speed-up at a rise of perplexity of 1 %"
    why = "" if holds else other
    return [
        *found,
        Check("speed-up by loss", what, f"{published}", f"{ours:.2f}", holds, source, why),
    ]


def _later_layers(trace: Trace, mode: str, result: simulate.Result, other: str) -> Check:
    read = result.keys_read + result.values_read
    third = max(len(read) // 3, 1)
    ours = float(read[-third:].sum() / read[:third].sum())
    holds = ours < 0.6
    what = f"{trace.model}, {mode.upper()}: traffic of the last third of layers over the first's"
    why = "" if holds else other
    return Check(
        "model's later layers", what, "< 0.6", f"{ours:.2f}", holds, f"{PAPER}, Fig. 7", why
    )
