"""Plots of KLLM runs, as the paper's Figs. 8 to 12."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suffice.errors import InputError
from suffice.paths import write_whole
from suffice_hw.kllm.energy import OPERATIONS
from suffice_hw.kllm.report import FIELDS, SCHEMA
from suffice_hw.runs import read_rows, read_summary

# Fig. 11 and section V-D: perplexity of LLaMA-2-7B at W4A3; not reproduced here.
PERPLEXITIES = {
    "integers": 6e5,
    "K-means": 8.03,
    "weighted K-means": 7.91,
    "online outliers": 7.49,
}
BASELINES = {
    "baseline": "text",
    "joules_per_token": "positive",
    "speed": "positive",
    "energy": "positive",
    "published_speed": "positive or nothing",
    "published_energy": "positive or nothing",
}
SWEEPS = {
    "sweep": "text",
    "value": "positive",
    "design": "text",
    "tokens_per_second": "positive",
    "joules_per_token": "positive",
}
SAVINGS = {"B: weights": 2.49, "C: activations": 20.98, "D: nonlinear": 1.45}  # Fig. 12


def draw(folders: list[Path], output: Path) -> None:
    """Plot Figs. 8 to 12 of a run.

    Raises:
        InputError: There are several runs, or the folder holds no run or a changed one.
        OSError: The picture cannot be written.
    """
    if len(folders) > 1:
        raise InputError(f"{len(folders)} runs of kllm: give one, whose sweeps are plotted")
    (folder,) = folders
    summary = read_summary(folder, {SCHEMA: FIELDS})
    baselines = read_rows(folder, "baselines.csv", BASELINES)
    if missing := {"fp16", "fp16_w4"} - {row["baseline"] for row in baselines}:
        raise InputError(f"{folder}/baselines.csv: must have the baseline '{min(missing)}'")
    sweeps = read_rows(folder, "sweeps.csv", SWEEPS)
    components = read_rows(folder, "energy.csv", {"component": "text", "pj": "number"})
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 4).flatten()
    figure.suptitle(f"{summary['model']}, {summary['precision']}, batch {summary['batch']}")
    _ratios(axes[0], baselines, "speed", "Fig. 8a: speed-up over")
    _ratios(axes[1], baselines, "energy", "Fig. 8b: energy saving over")
    _batches(axes[2], sweeps, "tokens_per_second", "Fig. 9: tokens/s by batch")
    _batches(axes[3], sweeps, "joules_per_token", "Fig. 9: J/token by batch")
    _outliers(axes[4], sweeps)
    _breakdown(axes[5], components)
    _published(axes[6], PERPLEXITIES, "Fig. 11: perplexity (published only)", logarithmic=True)
    _savings(axes[7], baselines, summary)
    with write_whole(output) as part:
        figure.savefig(part, format=output.suffix[1:], dpi=110)


def _ratios(axis: Any, rows: list[dict[str, Any]], what: str, title: str) -> None:
    places = range(len(rows))
    axis.bar([i - 0.2 for i in places], [row[what] for row in rows], 0.4, label="bound, ours")
    published = [row[f"published_{what}"] or 0 for row in rows]
    axis.bar([i + 0.2 for i in places], published, 0.4, label="published")
    axis.set_xticks(list(places), [row["baseline"] for row in rows], rotation=60)
    axis.set_yscale("log")
    axis.axhline(1, color="gray", linestyle=":")
    axis.set_title(title)
    axis.legend(loc="upper left")


def _batches(axis: Any, rows: list[dict[str, Any]], what: str, title: str) -> None:
    chosen = [row for row in rows if row["sweep"] == "batch"]
    for name in dict.fromkeys(row["design"] for row in chosen):
        own = [row for row in chosen if row["design"] == name]
        style = "-" if name in ("A4", "A3") else ":"
        axis.plot([row["value"] for row in own], [row[what] for row in own], style, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_title(title)
    axis.legend(fontsize="xx-small", ncols=3, loc="upper center")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * 4)  # room for the legend


def _outliers(axis: Any, rows: list[dict[str, Any]]) -> None:
    chosen = [row for row in rows if row["sweep"] == "outliers"]
    for name in dict.fromkeys(row["design"] for row in chosen):
        own = [row for row in chosen if row["design"] == name]
        shares = [100 * row["value"] for row in own]
        axis.plot(shares, [row["tokens_per_second"] for row in own], marker="o", label=name)
    axis.set_xlabel("outliers (%)")
    axis.set_title("Fig. 10a: tokens/s")
    axis.legend()


def _breakdown(axis: Any, rows: list[dict[str, Any]]) -> None:
    spent = {row["component"]: row["pj"] for row in rows if row["component"] in OPERATIONS}
    total = sum(spent.values())
    axis.barh(list(spent), [100 * each / total for each in spent.values()])
    axis.set_title("Fig. 10b: share of a token's energy on chip (%)")


def _published(axis: Any, values: dict[str, float], title: str, logarithmic: bool) -> None:
    axis.bar(list(values), list(values.values()), color="tab:orange")
    axis.tick_params(axis="x", rotation=30)
    if logarithmic:
        axis.set_yscale("log")
    axis.set_title(title)


def _savings(axis: Any, baselines: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Plot the energy saving of each step; ours has C and D together."""
    joules = {row["baseline"]: row["joules_per_token"] for row in baselines}
    ours = {
        "B: weights": joules["fp16"] / joules["fp16_w4"],
        "C and D": joules["fp16_w4"] / summary["joules_per_token"],
    }
    _published(axis, SAVINGS, "Fig. 12: energy saving (factor)", logarithmic=True)
    axis.bar([f"{name}, ours" for name in ours], list(ours.values()), color="tab:blue")
