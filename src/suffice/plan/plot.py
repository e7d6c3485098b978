"""The picture of a plan: how many requests hold the goals, and how times are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from suffice.plan.figures import SHOWN
from suffice.plan.search import Try, fewest

_WIDTH, _HEIGHT = 9.0, 3.6  # inches


def save(
    path: Path, kind: str, tries: Mapping[str, Sequence[Try]], limits: Mapping[str, float]
) -> None:
    """Write the picture, as "png", "svg" or "pdf".

    `tries` are those of each kind of engine, by its label. The right side is of the fewest engines
    that hold the goals, or else of the last that were tried.

    Raises:
        OSError: It cannot be written.
    """
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    held, spread = figure.subplots(1, 2)
    for label, own in tries.items():
        points = sorted((each.instances, each.figures["held"]) for each in own)
        held.plot(*zip(*points, strict=True), marker="o", label=label)
        chosen = fewest(own)
        for name, limit in limits.items():
            times = [value / (1e3 * limit) for value in chosen.figures[f"spread_{name}_ms"]]
            shares = [at / (len(times) - 1) for at in range(len(times))]
            if not times[-1] > 0:
                continue  # nothing was answered
            spread.plot(times, shares, label=f"{SHOWN[name]}, {chosen.instances} x {label}")
    held.set(xlabel="engines", ylabel="requests that hold the goals")
    held.set_xscale("log", base=2)
    spread.set(xlabel="time over its goal", ylabel="requests", xscale="log")
    spread.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    spread.axvline(1.0, color="grey", linewidth=1)
    for axes in (held, spread):
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="small")
    figure.savefig(path, format=kind)
