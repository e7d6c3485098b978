"""The plots of the benchmarks, all in one style."""

from __future__ import annotations

from pathlib import Path

try:
    import matplotlib
except ModuleNotFoundError:
    raise SystemExit("plots need matplotlib: run .venv/bin/pip install -e '.[plot]'") from None

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from suffice.eval.report_points import front

Points = list[tuple[float, float]]


def curves(
    path: Path,
    title: str,
    axes: tuple[str, str],
    series: dict[str, Points],
    *,
    marks: dict[str, float] | None = None,
    logarithmic: str = "x",
) -> None:
    """Plot lines; `marks` are named x positions (a model's prediction), plotted as dashed lines."""
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for label, points in series.items():
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3.5, label=label)
    if "x" in logarithmic:
        axis.set_xscale("log", base=2)
    if "y" in logarithmic:
        axis.set_yscale("log")
    for index, (label, x) in enumerate((marks or {}).items()):
        axis.axvline(x, linestyle="--", linewidth=1, color=f"C{index}", alpha=0.6)
        axis.annotate(
            label,
            (x, 0.98 - 0.06 * (index % 5)),
            xycoords=("data", "axes fraction"),
            fontsize=7,
            va="top",
        )
    _finish(figure_axis=axis, title=title, axes=axes)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def bars(
    path: Path, title: str, unit: str, groups: dict[str, dict[str, float]], *, stacked: bool
) -> None:
    """Plot a stacked bar per group, or a cluster of bars per group."""
    figure, axis = plt.subplots(figsize=(8, 4.8), layout="constrained")
    parts = list(dict.fromkeys(part for group in groups.values() for part in group))
    places = range(len(groups))
    bottom = [0.0] * len(groups)
    width = 0.7 if stacked else 0.8 / len(parts)
    for index, part in enumerate(parts):
        heights = [group.get(part, 0.0) for group in groups.values()]
        shift = 0.0 if stacked else (index - (len(parts) - 1) / 2) * width
        axis.bar(
            [place + shift for place in places],
            heights,
            width,
            label=part,
            bottom=bottom if stacked else None,
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axis.set_xticks(list(places), list(groups), fontsize=8)
    if len(groups) > 5:
        axis.tick_params(axis="x", rotation=35)
        plt.setp(axis.get_xticklabels(), ha="right", rotation_mode="anchor")
    _finish(figure_axis=axis, title=title, axes=("", unit))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def pareto(
    path: Path, axes: tuple[str, str], panels: dict[str, dict[str, tuple[float, float, float]]]
) -> None:
    """Plot named points (x, y, error of y) in panels; lower x and y are better.

    Points that no other point beats (the Pareto front) are joined. Points are numbered, with names
    at the side. The vertical axis is linear up to 0.1 and logarithmic above.
    """
    height = 0.2 * max(map(len, panels.values())) + 1.4
    figure, column = plt.subplots(
        len(panels), figsize=(8.5, height * len(panels)), layout="constrained", squeeze=False
    )
    for axis, (title, points) in zip(column[:, 0], panels.items(), strict=True):
        found = front([(x, y) for x, y, _ in points.values()])
        corners = sorted(list(points.values())[index][:2] for index in found)
        axis.plot(*zip(*corners, strict=True), drawstyle="steps-post", linewidth=1, color="0.4")
        for index, (name, (x, y, error)) in enumerate(points.items()):
            look = {"color": f"C{index % 10}", "marker": "osD^v"[index // 10 % 5]}
            face = look["color"] if index in found else "none"
            axis.errorbar(
                x, y, error, linewidth=1, markersize=5, markerfacecolor=face, linestyle="none",
                label=f"{index + 1}  {name}", **look,
            )  # fmt: skip
            axis.annotate(str(index + 1), (x, y), (4, 4), textcoords="offset points", fontsize=7)
        axis.set_yscale("symlog", linthresh=0.1)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(axes[0])
        axis.set_ylabel(axes[1])
        axis.grid(alpha=0.25)
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _finish(figure_axis: Axes, title: str, axes: tuple[str, str]) -> None:
    figure_axis.set_title(title, fontsize=10)
    figure_axis.set_xlabel(axes[0])
    figure_axis.set_ylabel(axes[1])
    figure_axis.grid(alpha=0.25)
    figure_axis.legend(fontsize=8)
