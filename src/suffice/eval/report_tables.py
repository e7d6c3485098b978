"""The tables of a report: the content of each result, and the numbers of each plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from suffice import __version__
from suffice.eval.report_points import SpeedChart, TradeOff, of_bench, setting, short_name
from suffice.eval.report_read import ROWS, Entry

MISSING = "-"
NOT_RECORDED = "not recorded"
_SAID_ELSEWHERE = (
    *("schema", "date", "command", "commit", "modified", "machine", "versions"),
    *("kind", "interrupted", "quick", "reads"),
)


class Share(float):
    """A fraction, shown in percent."""


@dataclass(frozen=True)
class Table:
    """Rows of plain values; an `Entry` is shown as a link."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def is_number(self, column: int) -> bool:
        """Return whether a column has numbers, which are right-aligned."""
        values = [row[column] for row in self.rows if row[column] is not None]
        return bool(values) and all(type(value) in (int, float, Share) for value in values)


def shown(value: Any) -> Markup:
    """Return a value as HTML; a number keeps all its digits for programs that read the page."""
    if value is None:
        return Markup(MISSING)
    if isinstance(value, Entry):
        return Markup('<a href="#r{0}">#{0}</a>').format(value.number)
    if isinstance(value, bool):
        return Markup("yes" if value else "no")
    if isinstance(value, Share):
        text = MISSING if np.isnan(value) else f"{100 * value:.4g} %"
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        return escape(value)
    return Markup('<data value="{}">{}</data>').format(json.dumps(value), text)


def title(entry: Entry) -> str:
    """Return the title of a result."""
    if entry.config:
        return f"{entry.kind}: {entry.config.get('model')}, {short_name(entry.config)}"
    if entry.kind == "bench":
        return f"bench: {entry.data['rows'][0]['model']}, {_techniques(entry)}"
    return f"{entry.kind}: {entry.data.get('title') or entry.data.get('model') or entry.file}"


def facts(entry: Entry) -> list[tuple[str, str]]:
    """Return the facts needed to judge or repeat a result, with the command that made it."""
    data = entry.data
    if entry.kind == "bench":
        row = data["rows"][0]
        machine = {"cpu": row.get("cpu"), "isa": row.get("isa")}
        data = {"machine": machine, "versions": {"suffice": row["version"]}}
    modified = data.get("modified")
    tree = NOT_RECORDED if modified is None else "modified" if modified else "as committed"
    found = {
        "file": entry.file,
        "command": data.get("command"),
        "date": data.get("date"),
        "machine": _listed(data["machine"]),
        "versions": _listed(data["versions"]),
        "commit": data.get("commit"),
        "working tree": tree,
        "weights, KV, techniques": _techniques(entry),
        "config hash": entry.config.get("hash"),
    }
    return [(name, str(value or NOT_RECORDED)) for name, value in found.items()]


def _techniques(entry: Entry) -> str | None:
    if entry.kind == "bench":
        return ", ".join(dict.fromkeys(map(of_bench, entry.data["rows"])))
    return ", ".join(setting(entry.config).values()) if entry.config else None


def _listed(values: Mapping[str, Any]) -> str:
    parts = []
    for name, value in values.items():
        if name.endswith("_bytes") and isinstance(value, int):
            name, value = name.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB"
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        parts.append(f"{name} {text}")
    return ", ".join(parts)


def warnings(entry: Entry) -> list[str]:
    """Return the reasons to distrust a result."""
    data = entry.data
    rows = data.get("rows") if entry.kind == "bench" else None
    version = rows[0]["version"] if rows else data["versions"].get("suffice")
    found = {
        "interrupted": data.get("interrupted"),
        "quick run: no figure means anything": data.get("quick"),
        "modified tree": data.get("modified"),
        f"stale: made by suffice {version}, this is {__version__}": version != __version__,
    }
    return [text for text, holds in found.items() if holds]


def overview(entries: Sequence[Entry]) -> Table:
    """Return the table of all results."""
    rows = [
        [entry, title(entry), entry.file, entry.data.get("date"), "; ".join(warnings(entry))]
        for entry in entries
    ]
    return Table("All results", ["#", "result", "file", "date", "notes"], rows)


def of_trade_off(trade: TradeOff) -> Table:
    """Return the numbers of a plot of quality against bytes read."""
    by_share, by_bytes = trade.front("share"), trade.front("bytes_per_token")
    rows = [
        [
            point.entry,
            point.label,
            point.quality,
            point.error,
            Share(point.share),
            "on the front" if index in by_share else "",
            point.bytes_per_token,
            "on the front" if index in by_bytes else "",
        ]
        for index, point in enumerate(trade.points)
    ]
    columns = [
        *("#", "setting", trade.measure.name, "standard error"),
        *("share of KV bytes read", "by share", "KV bytes read per cached token", "by bytes"),
    ]
    return Table(trade.measure.name, columns, rows)


def of_speeds(chart: SpeedChart) -> Table:
    """Return the numbers of a plot of speed against depth."""
    rows = [[line.label, *point] for line in chart.lines for point in line.points]
    columns = ["line", "depth (tokens)", "tokens per second", "minimum", "maximum"]
    return Table("The points", columns, rows)


def of_rows_read(shares: np.ndarray) -> Table:
    """Return the numbers of a pair of heat maps, from fractions [2, L, H]."""
    columns = [f"{what}, head {head + 1}" for head in range(shares.shape[2]) for what in "KV"]
    rows = [
        [number, *(Share(share) for share in layer.T.ravel())]
        for number, layer in enumerate(shares.swapaxes(0, 1), start=1)
    ]
    return Table("Fractions of rows read", ["layer", *columns], rows)


def of_entry(entry: Entry) -> list[Table]:
    """Return the tables of a result, without its facts and its rows by layer and head."""
    parts = {name: part for name, part in entry.data.items() if name not in _SAID_ELSEWHERE}
    if entry.kind == "bench":
        return [_listing("Results", parts["rows"])]
    found: list[Table] = []
    if entry.config:  # the figures come first
        for name in ("result", "asked", "config"):
            found += tabulated(name, parts.pop(name))
    if reads := entry.data.get("reads"):
        totals = {name: int(np.sum(reads[name])) for name in ROWS}
        found += tabulated("reads, totals", {**reads, **totals})
    return found + tabulated("other values" if entry.config else "values", parts)


def tabulated(name: str, data: Mapping[str, Any]) -> list[Table]:
    """Return a table of a mapping's values, and one for each list of mappings in it."""
    scalars, tables = [], []
    for key, value in flat(data):
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            tables.append(_listing(key, value))
        else:
            scalars.append([key, _plain(value)])
    return ([Table(name, ["what", "value"], scalars)] if scalars else []) + tables


def _listing(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return mappings as the rows of a table, with a column for every field that occurs."""
    flattened = [dict(flat(row)) for row in rows]
    columns = list(dict.fromkeys(column for row in flattened for column in row))
    return Table(name, columns, [[_plain(row.get(c)) for c in columns] for row in flattened])


def flat(data: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the values of nested mappings with their paths, such as `against.ratio`."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _plain(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    simple = all(not isinstance(each, list | dict) for each in value)
    return ", ".join(map(_text, value)) if simple else json.dumps(value)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
