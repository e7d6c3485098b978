"""Pictures of runs: the paper's Figs. 6 to 8 from their tables."""

from __future__ import annotations

from pathlib import Path

from suffice.hw.scrooge.report import read_layers, read_summary


def draw(folders: list[Path], output: Path) -> None:
    """Draw traffic (Fig. 6), traffic by layer (Fig. 7) and speed-up (Fig. 8) of some runs.

    Raises:
        InputError: A folder that no run has written.
        OSError: The picture cannot be written.
    """
    summaries = [read_summary(folder) for folder in folders]
    layers = [read_layers(folder) for folder in folders]
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    traffic, by_layer, speed = figure.subplots(1, 3)
    names = [folder.name for folder in folders]
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
    speed.vlines(names, least, most, color="black", label="how far heads overlap")
    speed.set_ylabel("times faster than the baseline")
    speed.legend()
    part = output.with_name(f".{output.name}.part")
    figure.savefig(part, format=output.suffix[1:], dpi=120)
    part.replace(output)
