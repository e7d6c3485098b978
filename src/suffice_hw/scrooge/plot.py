"""Plots of runs, as the paper's Figs. 6 to 9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suffice.paths import write_whole
from suffice_hw.runs import labels, read_rows, read_summary
from suffice_hw.scrooge.report import FIELDS, SCHEMA

LAYERS = {
    "layer": "number",
    "keys_read": "number",
    "values_read": "number",
    "rows_held": "positive",
}

# Fig. 9, OPT-6.7B/13B and LLaMA-2-7B/13B: {limit on the rise of perplexity in percent: speed-up}
LOSSES = {1.0: 1.97, 2.0: 2.13, 3.0: 2.70, 5.0: 4.31, 10.0: 6.86}


def draw(folders: list[Path], output: Path) -> None:
    """Plot traffic (Fig. 6), by layer (Fig. 7), speed-up (Fig. 8), and by perplexity (Fig. 9).

    Fig. 9 has the runs with a measured rise of perplexity, and is omitted if there are none.

    Raises:
        InputError: A folder holds no run or a changed one, or is given twice.
        OSError: The picture cannot be written.
    """
    names = labels(folders)
    summaries = [read_summary(folder, {SCHEMA: FIELDS}) for folder in folders]
    layers = [read_rows(folder, "layers.csv", LAYERS) for folder in folders]
    measured = [each for each in summaries if each.get("perplexity_loss_percent") is not None]
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = 4 if measured else 3
    figure = Figure(figsize=(4 * count, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    traffic, by_layer, speed, *last = figure.subplots(1, count)
    keys = [1 / each["key_reduction"] / 2 for each in summaries]
    values = [1 / each["value_reduction"] / 2 for each in summaries]
    traffic.bar(names, keys, label="K")
    traffic.bar(names, values, bottom=keys, label="V")
    traffic.axhline(1, color="gray", linestyle=":")
    traffic.set_ylabel("bytes read, baseline = 1")
    traffic.legend()
    for name, rows in zip(names, layers, strict=True):
        read = [(row["keys_read"] + row["values_read"]) / 2 / row["rows_held"] for row in rows]
        by_layer.plot([row["layer"] for row in rows], read, label=name)
    by_layer.set_xlabel("layer")
    by_layer.set_ylim(0, 1)
    by_layer.legend()
    least = [each["least_speedup"] for each in summaries]
    most = [each["overlapped_speedup"] for each in summaries]
    speed.bar(names, [each["speedup"] for each in summaries])
    speed.vlines(names, least, most, color="black", label="without to full overlap of heads")
    speed.set_ylabel("speed-up over the baseline")
    speed.legend()
    if last:
        _by_loss(last[0], measured)
    with write_whole(output) as part:
        figure.savefig(part, format=output.suffix[1:], dpi=120)


def _by_loss(axis: Any, summaries: list[dict[str, Any]]) -> None:
    """Plot the best speed-up by the limit on the rise of perplexity."""
    points = sorted((each["perplexity_loss_percent"], each["speedup"]) for each in summaries)
    best = [max(speed for loss, speed in points if loss <= limit) for limit, _ in points]
    label = ", ".join(sorted({each["model"] for each in summaries}))
    axis.step([loss for loss, _ in points], best, where="post", marker="o", label=label)
    axis.step(list(LOSSES), list(LOSSES.values()), where="post", marker="s", label="published")
    axis.set_xlabel("limit on the rise of perplexity (%)")
    axis.set_ylabel("speed-up over the baseline")
    axis.legend()
