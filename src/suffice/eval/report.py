"""A page of results: quality against bytes read, rows read, speed by depth, all figures.

The page is a single file that loads nothing else. Below each plot is a table with its numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from suffice import __version__
from suffice.errors import InputError
from suffice.eval import report_plots as plots
from suffice.eval import report_tables as tables
from suffice.eval.report_points import (
    SpeedChart,
    TradeOff,
    shares,
    short_name,
    speed_charts,
    trade_offs,
)
from suffice.eval.report_read import Entry
from suffice.paths import write_whole

_TEMPLATE = "report.html.jinja"


def page(entries: Sequence[Entry]) -> str:
    """Return the report of some results as HTML."""
    trades, charts = trade_offs(entries), speed_charts(entries)
    styles = _style_numbers(trades, charts)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = tables.shown
    return environment.get_template(_TEMPLATE).render(
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        version=__version__,
        overview=tables.overview(entries),
        trades=_trades(trades, styles),
        heats=_heats(entries),
        charts=_charts(charts, styles),
        results=[_result(entry) for entry in entries],
    )


def write(path: Path, text: str) -> None:
    """Write a page atomically: the path holds the old page or the complete new one.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        with write_whole(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _style_numbers(trades: Sequence[TradeOff], charts: Sequence[SpeedChart]) -> dict[str, int]:
    """Return a style number for each setting and line, by name."""
    points = [short_name(point.entry.config) for trade in trades for point in trade.points]
    lines = [line.label for chart in charts for line in chart.lines]
    return {name: index for index, name in enumerate(dict.fromkeys(points + lines))}


def _trades(trades: Sequence[TradeOff], styles: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "title": f"{model}: {kind}",
            "conditions": conditions,
            "plots": [
                plots.trade_off(trade, cost, f"trade-{group}-{at}-{cost}", styles)
                for at, trade in enumerate(found)
                for cost in plots.COSTS
            ],
            "tables": [tables.of_trade_off(trade) for trade in found],
        }
        for group, ((model, kind, conditions), found) in enumerate(_comparable(trades).items())
    ]


def _comparable(trades: Sequence[TradeOff]) -> dict[tuple[str, str, str], list[TradeOff]]:
    """Group trade-offs by model, kind of evaluation and conditions."""
    found: dict[tuple[str, str, str], list[TradeOff]] = {}
    for trade in trades:
        kind = trade.points[0].entry.kind
        found.setdefault((trade.model, kind, trade.conditions), []).append(trade)
    return found


def _heats(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    reading = [entry for entry in entries if entry.data.get("reads")]
    read = {entry.number: _mean(entry, "key") + _mean(entry, "value") for entry in reading}
    least = min(read, key=read.__getitem__, default=None)
    found = []
    for entry in reading:
        fractions = shares(entry.data["reads"])
        label = tables.title(entry)
        found.append(
            {
                "entry": entry,
                "label": label,
                "open": entry.number == least,
                "means": [tables.Share(_mean(entry, which)) for which in ("key", "value")],
                "plot": plots.rows_read(fractions, f"rows-{entry.number}", label),
                "table": tables.of_rows_read(fractions),
            }
        )
    return found


def _mean(entry: Entry, which: str) -> float:
    """Return the fraction of key or value rows that was read; NaN if there are no rows."""
    reads = entry.data["reads"]
    held = sum(map(sum, reads["rows_held"]))
    return sum(map(sum, reads[f"{which}_rows_read"])) / held if held else float("nan")


def _charts(charts: Sequence[SpeedChart], styles: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "title": chart.title,
            "note": chart.note,
            "entries": chart.entries,
            "plot": plots.speeds(chart, f"speed-{at}", styles),
            "table": tables.of_speeds(chart),
        }
        for at, chart in enumerate(charts, start=1)
        if chart.lines
    ]


def _result(entry: Entry) -> dict[str, Any]:
    return {
        "entry": entry,
        "title": tables.title(entry),
        "facts": tables.facts(entry),
        "warnings": tables.warnings(entry),
        "tables": tables.of_entry(entry),
    }
