"""The data of a report's plots: quality against bytes read, rows read, speed by depth."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suffice.eval.report_read import ROWS, Entry

# Options that may differ between compared results, because they change no figure.
_INCIDENTAL = ("output", "data_dir", "batch_size", "text_line_ends")  # the hash knows these
_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_MEANS = {"longbench": "LongBench", "ruler": "RULER"}  # evaluations with a mean over tasks
_PLAIN = {
    "attention": "exact",
    "softmax": "exactsoftmax",
    "policy": "full",
    "speculate": "nodrafts",
}
_MOST_DIGITS = 12  # of a hash
_DECODE = "decode-"  # prefix of the peers' cases at a depth


@dataclass(frozen=True)
class Measure:
    """A measure of quality: its name, and whether less is better."""

    name: str
    less_is_better: bool
    exact: float | None = None  # value of the exact model


@dataclass(frozen=True)
class Point:
    """A result's quality, and the KV bytes that its decode steps read."""

    entry: Entry
    label: str
    quality: float
    error: float | None  # standard error
    share: float  # bytes read / bytes that exact attention would have read
    bytes_per_token: float  # read per cached token, in all layers and heads


@dataclass(frozen=True)
class TradeOff:
    """Results that can be compared: the same measure of the same model on the same data."""

    measure: Measure
    model: str
    conditions: str
    points: list[Point]

    def front(self, cost: str) -> set[int]:
        """Return the indices of the Pareto front; `cost` is `share` or `bytes_per_token`."""
        sign = 1 if self.measure.less_is_better else -1
        return front([(getattr(point, cost), sign * point.quality) for point in self.points])


def front(points: Sequence[tuple[float, float]]) -> set[int]:
    """Return the indices of the points on the Pareto front; less is better in both coordinates.

    A point is on the front if no other is at least as good in both coordinates and better in one.
    Equal points are on it together.
    """
    found: set[int] = set()
    best = before = (np.inf, np.inf)
    for index in sorted(range(len(points)), key=lambda index: points[index]):
        point = points[index]
        if point[1] < best[1] or point == before:
            best = before = point
            found.add(index)
    return found


def trade_offs(entries: Iterable[Entry]) -> list[TradeOff]:
    """Return quality against bytes read, for each measure; interrupted runs are skipped."""
    groups: defaultdict[tuple[Measure, str, str], list[tuple[Entry, float, float | None]]]
    groups = defaultdict(list)
    for entry in entries:
        if entry.data.get("interrupted") or not _reads_something(entry):
            continue
        for measure, value, error in qualities(entry):
            model = str(entry.config.get("model"))
            groups[measure, model, conditions(entry)].append((entry, value, error))
    return [
        TradeOff(*key, _points(found))
        for key, found in sorted(groups.items(), key=lambda item: item[0][1:])
    ]


def _reads_something(entry: Entry) -> bool:
    reads = entry.data.get("reads") or {"kv_bytes_held": 0}
    return reads["kv_bytes_held"] > 0 and bool(np.sum(reads["rows_held"]) > 0)


def _points(found: Sequence[tuple[Entry, float, float | None]]) -> list[Point]:
    entries = [entry for entry, _, _ in found]
    return [
        Point(entry, label, value, error, *_costs(entry.data["reads"]))
        for label, (entry, value, error) in zip(labels(entries), found, strict=True)
    ]


def _costs(reads: Mapping[str, Any]) -> tuple[float, float]:
    tokens = np.mean(reads["rows_held"])  # cached tokens, summed over steps
    read = reads["kv_bytes_read"]
    return read / reads["kv_bytes_held"], float(read / tokens)


def qualities(entry: Entry) -> list[tuple[Measure, float, float | None]]:
    """Return the measures of quality in a result, with values and standard errors if present."""
    result = entry.data.get("result", {})
    found: list[tuple[Measure, Any, Any]] = []
    against = result.get("against")
    if entry.kind == "perplexity" and isinstance(against, dict):
        ratio = Measure("perplexity over the exact model's", True, 1)
        found += [(ratio, against.get("ratio"), against.get("ratio_error"))]
        divergence = Measure("KL divergence, mean (nats)", True, 0)
        found += [(divergence, against.get("divergence"), None)]
    elif entry.kind == "tasks":
        for row in _rows(result):
            measure = Measure(f"accuracy, {row.get('task')}", False)
            found.append((measure, row.get("acc"), row.get("acc_stderr")))
    elif entry.kind in _MEANS and isinstance(mean := result.get("mean"), dict):
        measure = Measure(f"{_MEANS[entry.kind]} score, mean", False)
        found.append((measure, mean.get("score"), mean.get("error")))
    return [
        (measure, value, error if is_number(error) else None)
        for measure, value, error in found
        if is_number(value)
    ]


def _rows(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = result.get("tasks")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def is_number(value: Any) -> bool:
    """Return whether a value of a record is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)


def conditions(entry: Entry) -> str:
    """Return the options of an evaluation, except those that change no figure."""
    asked = entry.data.get("asked", {})
    return ", ".join(
        f"{name} {str(value)[:_MOST_DIGITS] if name.endswith('sha256') else value}"
        for name, value in asked.items()
        if value is not None and name not in _INCIDENTAL
    )


def setting(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's types of weights, keys and values, and its techniques."""
    parts = {name: technique(config[name]) for name in _PLAIN if isinstance(config.get(name), str)}
    quant = str(config.get("quant"))
    if quant.startswith(("NoQuant", "None")):
        weights = str(config.get("dtype"))
    elif quant.startswith("AsStored"):
        weights = "as stored" + (", int8 inputs" if "act_bits=8" in quant else "")
    else:
        weights = technique(quant)
    kv = "KV " + _short(config.get("kv_cache_dtype"))
    return {"weights": _short(weights), "kv": kv} | parts


def _short(dtype: Any) -> str:
    return _SHORT.get(str(dtype), str(dtype))


def technique(text: str) -> str:
    """Return a technique in the form of labels: `TopK(k=64)` becomes `topk k=64`."""
    match = re.fullmatch(r"(\w+)\((.*)\)", text, re.DOTALL)
    return f"{match[1].lower()} {match[2]}".strip() if match else text


def short_name(config: Mapping[str, Any]) -> str:
    """Return the types of weights, keys and values, and the techniques that are not defaults."""
    parts = setting(config).items()
    return " · ".join(value for part, value in parts if value != _PLAIN.get(part))


def labels(entries: Sequence[Entry]) -> list[str]:
    """Return for each result the settings that differ, and its number if others have the same."""
    settings = [setting(entry.config) for entry in entries]
    differing = [part for part in settings[0] if len({parts.get(part) for parts in settings}) > 1]
    found = [" · ".join(parts.get(part, "") for part in differing) for parts in settings]
    if not differing:
        found = [short_name(entry.config) for entry in entries]
    return [
        f"{label} (#{entry.number})" if found.count(label) > 1 else label
        for label, entry in zip(found, entries, strict=True)
    ]


def shares(reads: Mapping[str, Any]) -> np.ndarray:
    """Return the fractions of key and value rows read: [2, L, H], NaN where there are no rows.

    `reads` is a trace as `Trace.plain` writes it.
    """
    keys, values, held = (np.asarray(reads[name], np.float64) for name in ROWS)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([keys, values]) / held


@dataclass(frozen=True)
class Line:
    """Points (cached tokens, tokens per second, lowest, highest), in order of depth."""

    label: str
    points: list[tuple[float, float, float, float]]


@dataclass(frozen=True)
class SpeedChart:
    """Comparable lines: the same test on the same machine."""

    title: str
    note: str
    entries: list[Entry]
    lines: list[Line]


def speed_charts(entries: Sequence[Entry]) -> list[SpeedChart]:
    """Return charts of speed against depth, from results of `bench` and of peers."""
    charts = _bench_charts([entry for entry in entries if entry.kind == "bench"])
    return charts + [_peers_chart(entry) for entry in entries if entry.kind == "peers"]


def _bench_charts(entries: Sequence[Entry]) -> list[SpeedChart]:
    groups: defaultdict[tuple[str, str], dict[tuple[str, int], Line]] = defaultdict(dict)
    sources: defaultdict[tuple[str, str], dict[int, Entry]] = defaultdict(dict)
    for entry in entries:
        for row in entry.data["rows"]:
            key = _case(row)
            label = of_bench(row)
            line = groups[key].setdefault((label, entry.number), Line(label, []))
            speed, deviation = row["tokens_per_second"], row["deviation"]
            line.points.append((row["n_depth"], speed, speed - deviation, speed + deviation))
            sources[key][entry.number] = entry
    return [
        SpeedChart(*key, list(sources[key].values()), _told_apart(lines))
        for key, lines in groups.items()
    ]


def _case(row: Mapping[str, Any]) -> tuple[str, str]:
    test = row["test"].partition(" ")[0]
    what = "prompts" if test.startswith("pp") else "decode"
    place = f"{row.get('cpu', 'unknown CPU')} ({row.get('isa', '?')})"
    return (
        f"{row['model']}, {what} ({test})",
        f"{place}, threads: {row['threads']}, batch: {row['batch']}; bars: standard deviation",
    )


def of_bench(row: Mapping[str, Any]) -> str:
    """Return the short name of a bench record's setting: weights, keys and values, techniques."""
    parts = [_short(row["weights"]), f"KV {_short(row['kv'])}", row.get("techniques")]
    return " · ".join(part for part in parts if part)


def _told_apart(lines: Mapping[tuple[str, int], Line]) -> list[Line]:
    labels = [label for label, _ in lines]
    return [
        Line(f"{label} (#{number})" if labels.count(label) > 1 else label, sorted(line.points))
        for (label, number), line in lines.items()
    ]


def _peers_chart(entry: Entry) -> SpeedChart:
    speeds: defaultdict[str, defaultdict[int, list[float]]]
    speeds = defaultdict(lambda: defaultdict(list))
    for section in entry.data["peers"].values():
        for case, rounds in section.get("cases", {}).items():
            depth = case.removeprefix(_DECODE)
            if depth == case or not depth.isdigit():
                continue
            ours = [each["ours"]["tokens_per_second"] for each in rounds]
            speeds[f"suffice {section['against']}"][int(depth)] += ours
            theirs = [each["peer"]["tokens_per_second"] for each in rounds]
            speeds[section["label"]][int(depth)] += theirs
    lines = [
        Line(
            label,
            [(d, statistics.median(s), min(s), max(s)) for d, s in sorted(by.items()) if s],
        )
        for label, by in speeds.items()
    ]
    lines = [line for line in lines if line.points]
    note = f"{entry.data['machine'].get('cpu')}; medians of all rounds; bars: minimum to maximum"
    return SpeedChart(f"{entry.data.get('model')}, decode, and peers", note, [entry], lines)
