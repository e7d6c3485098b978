"""The plots of a report, as SVG in the colours and the font of the page that includes them.

Text stays text. Colours that follow the page are plotted as placeholders and then replaced by CSS
variables.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter, ScalarFormatter
from matplotlib.transforms import Bbox

from suffice.eval.report_points import SpeedChart, TradeOff, short_name

Segment = tuple[tuple[float, float], tuple[float, float]]

INK, GRID = "#010203", "#040506"
_VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)"}
# Each has a contrast of at least 3 to the light and to the dark background of the page.
SERIES = ("#3a7bd5", "#d9720b", "#22935b", "#a259c9", "#d2474b", "#128c9e", "#97713b", "#75808d")
MARKERS = "osD^vP"
COSTS = {
    "share": "share of KV bytes read",
    "bytes_per_token": "KV bytes read per cached token",
}
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "suffice",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}
_READ = LinearSegmentedColormap.from_list("read", ["#eef3fa", "#9dbfee", "#3a7bd5", "#1c4c98"])
_LABEL_GAP = 8  # points from a mark to its label
# Offsets of a label, best first: next to its mark, at a corner of it, or farther above or below
# with a line to it.
_NEAR = [(_LABEL_GAP, 0), (-_LABEL_GAP, 0)] + [(x, y) for y in (8, -8) for x in (6, -6)]
_PLACES = _NEAR + [
    (side * 2 * _LABEL_GAP, line * 13) for step in range(1, 8) for line in (step, -step)
    for side in (-1, 1)
]  # fmt: skip


def trade_off(trade: TradeOff, cost: str, name: str, styles: Mapping[str, int]) -> Markup:
    """Return a plot of quality against a cost, with the Pareto front as a line.

    `styles` maps short names of settings to style numbers, so that a setting has the same style in
    all plots.
    """
    with _style():
        figure, axes = _figure(5.6, 3.2)
        found = trade.front(cost)
        points = [(getattr(point, cost), point.quality) for point in trade.points]
        _frame(axes, trade, cost, max(x for x, _ in points))
        steps = _draw_front(axes, trade, sorted(points[index] for index in found))
        colours = []
        for index, (at, point) in enumerate(zip(points, trade.points, strict=True)):
            colour, marker = _style_of(styles[short_name(point.entry.config)])
            colours.append(colour)
            axes.errorbar(*at, point.error, color=colour, linewidth=1, alpha=0.7)
            face = colour if index in found else "none"
            axes.plot(*at, marker, color=colour, markerfacecolor=face, zorder=4)
        texts = [(point.label, f"#{point.entry.number}") for point in trade.points]
        _label(figure, axes, points, texts, colours, steps)
        better = "less" if trade.measure.less_is_better else "more"
        title = f"{trade.measure.name} against {COSTS[cost]}"
        return _svg(figure, name, title, f"{title}; {better} is better. The table has the numbers.")


def _frame(axes: Any, trade: TradeOff, cost: str, most: float) -> None:
    """Set scales and labels: bytes from zero on, and a margin around the qualities."""
    measure = trade.measure
    lows = [point.quality - (point.error or 0) for point in trade.points]
    highs = [point.quality + (point.error or 0) for point in trade.points]
    if measure.exact is not None:
        lows, highs = [*lows, measure.exact], [*highs, measure.exact]
        axes.axhline(measure.exact, color=INK, linewidth=0.9, linestyle=(0, (1, 3)))
    room = 0.12 * (max(highs) - min(lows)) or 0.05
    axes.set_ylim(min(lows) - room, max(highs) + room)
    axes.set_xlim(0, 1.08 * most or 1)
    axes.set_xlabel(COSTS[cost])
    arrow = "↓" if measure.less_is_better else "↑"
    axes.set_ylabel(f"{measure.name} {arrow}")
    axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    if cost == "share":
        axes.set_xlim(0, 1.08)
        axes.set_xticks(np.linspace(0, 1, 5))
        axes.xaxis.set_major_formatter(PercentFormatter(1))
    else:
        axes.xaxis.set_major_formatter(EngFormatter("B"))


def _draw_front(axes: Any, trade: TradeOff, points: Sequence[tuple[float, float]]) -> list[Segment]:
    """Plot the Pareto front as steps up to the frame, shade the worse side, return the steps."""
    low, high = axes.get_ylim()
    worst = high if trade.measure.less_is_better else low
    xs = [points[0][0], *(x for x, _ in points), axes.get_xlim()[1]]
    ys = [worst, *(y for _, y in points), points[-1][1]]
    axes.plot(xs, ys, color=INK, linewidth=1.1, alpha=0.6, drawstyle="steps-post", zorder=2)
    axes.fill_between(xs, ys, worst, step="post", color=INK, alpha=0.05, linewidth=0, zorder=1)
    ends = list(zip(xs, ys, strict=True))
    corners = [(after[0], before[1]) for before, after in pairwise(ends)]
    return [*zip(ends[:-1], corners, strict=True), *zip(corners, ends[1:], strict=True)]


def speeds(chart: SpeedChart, name: str, styles: Mapping[str, int]) -> Markup:
    """Return a plot of speed against depth, with ranges; `styles` maps labels to style numbers."""
    with _style():
        figure, axes = _figure(6.0, 3.8)
        for line in chart.lines:
            colour, marker = _style_of(styles[line.label])
            depths, middles, lows, highs = zip(*line.points, strict=True)
            axes.vlines(depths, lows, highs, color=colour, linewidth=1, alpha=0.6)
            axes.plot(depths, middles, marker + "-", color=colour, markersize=4.5, label=line.label)
        axes.set_ylim(0)
        axes.set_xlabel("depth (cached tokens)")
        axes.set_ylabel("tokens per second ↑")
        figure.legend(loc="outside lower left", ncols=2, fontsize=9, handlelength=1.6)
        title = f"{chart.title}: speed against depth"
        return _svg(figure, name, title, f"{chart.note}. The table has the numbers.")


def rows_read(shares: np.ndarray, name: str, label: str) -> Markup:
    """Return heat maps of fractions [2, L, H]: keys above, values below."""
    _, layers, heads = shares.shape
    with _style():
        height = min(max(0.13 * heads, 0.5), 2.6)
        figure, rows = _figure(10, 2 * height + 1.3, 2)
        for axes, share, what in zip(rows, shares, ("K", "V"), strict=True):
            edges = (0.5, layers + 0.5, heads + 0.5, 0.5)
            image = axes.imshow(
                share.T, vmin=0, vmax=1, cmap=_READ, aspect="auto",
                interpolation="none", extent=edges,
            )  # fmt: skip
            image.set_gid(f"rows-of-{what}")  # the default is a hash, not unique for equal images
            axes.grid(False)
            axes.set_ylabel(f"{what} head")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)
        rows[0].tick_params(labelbottom=False)
        rows[1].set_xlabel("layer")
        bar = figure.colorbar(image, ax=rows, format=PercentFormatter(1), pad=0.02, aspect=12)
        bar.set_label("rows read")
        bar.outline.set_visible(False)
        title = f"Fractions of K and V rows read, by layer and head: {label}"
        return _svg(figure, name, title, "Keys above, values below. The table has the numbers.")


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Plot in the style of the page, whose font may have glyphs that the measuring font lacks."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def _figure(width: float, height: float, rows: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots(rows, sharex=rows > 1)
    for each in np.atleast_1d(axes):
        each.patch.set_alpha(0)
    return figure, axes


def _style_of(index: int) -> tuple[str, str]:
    return SERIES[index % len(SERIES)], MARKERS[index // len(SERIES) % len(MARKERS)]


def _label(
    figure: Figure,
    axes: Any,
    points: Sequence[tuple[float, float]],
    texts: Sequence[tuple[str, str]],
    colours: Sequence[str],
    steps: Sequence[Segment],
) -> None:
    """Label each point where its text hides nothing; if there is no such place, use a shorter text.

    `texts` has a pair for each point: the long text and the short one.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # free places must stay free
    frame = axes.get_window_extent()
    marks = axes.transData.transform(points)
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in marks]
    taken += [Bbox(axes.transData.transform(np.sort(step, 0))).padded(1) for step in steps]
    for index in np.argsort(-marks[:, 1]):
        free = (
            (text, away, box)
            for text, away, box in _candidates(axes, texts[index], points[index])
            if _inside(frame, box) and not box.count_overlaps(taken)
        )
        text, away, box = next(free, (texts[index][-1], _PLACES[0], None))
        taken += [] if box is None else [box]
        line = {
            "arrowstyle": "-",
            "color": colours[index],
            "linewidth": 0.7,
            "shrinkA": 1,
            "shrinkB": 4,
            "relpos": (0 if away[0] > 0 else 1, 0.5),
        }
        _note(axes, text, points[index], away, arrowprops=None if away in _NEAR else line)


def _inside(frame: Bbox, box: Bbox) -> bool:
    across = frame.x0 <= box.x0 and box.x1 <= frame.x1
    return bool(across and frame.y0 <= box.y0 and box.y1 <= frame.y1)


def _candidates(
    axes: Any, texts: Iterable[str], at: tuple[float, float]
) -> Iterator[tuple[str, tuple[int, int], Bbox]]:
    """Yield each text with each offset from its mark and the box in pixels that it takes there."""
    pixels = axes.figure.dpi / 72
    for text in texts:
        note = _note(axes, text, at, _PLACES[0])
        box = note.get_window_extent()  # slow, so the other offsets move this box
        note.remove()
        for x, y in _PLACES:
            right = (x - _PLACES[0][0]) * pixels - (box.width if x < 0 else 0)
            yield text, (x, y), box.translated(right, (y - _PLACES[0][1]) * pixels)


def _note(
    axes: Any, text: str, at: tuple[float, float], away: tuple[float, float], **more: Any
) -> Any:
    """Write a text `away` points from a mark at `at`."""
    return axes.annotate(
        text,
        at,
        away,
        textcoords="offset points",
        ha="left" if away[0] > 0 else "right",
        va="center",
        fontsize=8.5,
        zorder=5,
        **more,
    )


def _svg(figure: Figure, name: str, title: str, description: str) -> Markup:
    """Return a figure as SVG; all its ids start with `name`, to be unique in a page."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg[svg.index("<svg") :])
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    for placeholder, variable in _VARIABLES.items():
        svg = svg.replace(placeholder, variable)
    head, body = svg.split(">", 1)
    texts = f'<title id="{name}-title">{escape(title)}</title>'
    texts += f'<desc id="{name}-desc">{escape(description)}</desc>'
    role = f'role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc"'
    return Markup(f"{head} {role}>{texts}{body}")
