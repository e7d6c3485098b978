"""What a report reads and refuses, and what it plots: the Pareto front, rows read, speeds."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_records import (
    CONFIG,
    HEADS,
    HELD,
    LAYERS,
    PEERS,
    benched,
    evaluated,
    folder_of_all,
    perplexity,
    write,
)
from suffice.errors import InputError
from suffice.eval.report_points import (
    conditions,
    front,
    labels,
    shares,
    short_name,
    speed_charts,
    trade_offs,
)
from suffice.eval.report_read import Entry, read


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return folder_of_all(tmp_path / "results")


Points = st.lists(st.tuples(*[st.integers(0, 6) | st.floats(0, 6)] * 2), min_size=1, max_size=12)


@given(Points)
def test_the_front_is_what_nothing_dominates(points: list[tuple[float, float]]) -> None:
    def dominated(point: tuple[float, float]) -> bool:
        return any(x <= point[0] and y <= point[1] and (x, y) != point for x, y in points)

    expected = {index for index, point in enumerate(points) if not dominated(point)}
    assert front(points) == expected and expected


def test_a_front_knows_which_way_is_better(records: Path) -> None:
    entries = read([records])
    found = {trade.measure.name: trade for trade in trade_offs(entries)}
    ratio = found["perplexity over the exact model's"]
    assert [(p.share, p.quality, p.error) for p in ratio.points] == [
        (1.0, 1.0, 0.00123),
        (0.25, 1.0625, 0.00123),
        (0.5, 1.125, 0.00123),
    ]
    assert ratio.front("share") == {0, 1}
    assert [point.label for point in ratio.points] == ["exact", "topk k=64", "topk k=128"]
    assert ratio.points[1].bytes_per_token == 0.25 * 51_200_000 / HELD
    assert found["KL divergence, mean (nats)"].front("share") == {0, 1}
    task = found["accuracy, piqa"].points[0]
    assert (task.quality, task.error) == (0.625, 0.03125)
    assert found["RULER score, mean"].points[0].quality == 0.875
    more = []
    for acc, share in [(0.5, 1.0), (0.75, 0.5), (0.25, 0.25)]:
        record = evaluated("tasks", {"tasks": [{"task": "t", "acc": acc}]}, share)
        more.append(Entry(len(more), "", "tasks", record))
    assert trade_offs(more)[0].front("share") == {1, 2}, "of accuracy more is better"


def test_only_like_is_compared_with_like() -> None:
    first, second = perplexity(1.5), perplexity(1.25)
    second["asked"] |= {"output": "csv", "data_dir": "elsewhere", "batch_size": 2}
    other, cut, empty = perplexity(1.75), perplexity(2.0), perplexity(2.5)
    other["asked"]["limit"] = 5
    cut["interrupted"] = True
    empty["reads"] |= {"kv_bytes_held": 0}
    made = [first, second, other, cut, empty]
    entries = [Entry(at, "", "perplexity", record) for at, record in enumerate(made)]
    trades = [trade for trade in trade_offs(entries) if trade.measure.exact == 1]
    assert [[point.quality for point in trade.points] for trade in trades] == [[1.5, 1.25], [1.75]]
    assert conditions(entries[0]) == "limit 4"
    assert trades[0].points[0].label == "bf16 · KV bf16 (#0)"


def test_labels_name_what_differs() -> None:
    int8 = {"quant": "Int8()", "kv_cache_dtype": "int8"}
    entries = [Entry(at, "", "", perplexity(1, **c)) for at, c in enumerate([{}, int8])]
    assert labels(entries) == ["bf16 · KV bf16", "int8 · KV int8"]
    file = "AsStored(act_bits={}, dtype='bfloat16')"
    assert short_name(CONFIG | {"quant": file.format(16)}).startswith("as stored · KV ")
    assert short_name(CONFIG | {"quant": file.format(8)}).startswith("as stored, int8 inputs · KV ")
    assert short_name(CONFIG | int8 | {"policy": "Window(rows=8)"}) == (
        "int8 · KV int8 · window rows=8"
    )


def test_shares_of_rows() -> None:
    reads = perplexity(1, 0.5)["reads"]
    reads["rows_held"][0] = [0, 2000]
    found = shares(reads)
    assert found.shape == (2, LAYERS, HEADS)
    assert not np.isfinite(found[0, 0, 0]) and found[0, 0, 1] == 499 / 2000
    assert found[1, 3, 1] == (496 // 2) / HELD


def test_speed_by_depth(records: Path) -> None:
    other = write(records / "h.json", [benched(0, 5.0), benched(8, 4.0, batch=2)])
    first, second = speed_charts(read([records, other]))
    assert [(line.label, line.points) for line in first.lines] == [
        ("int8 · KV int8 (#7)", [(0, 64.5, 64.0, 65.0), (1024, 32.25, 31.75, 32.75)]),
        ("int8 · KV int8 (#8)", [(0, 5.0, 4.5, 5.5)]),
    ]
    assert "batch: 2" in second.note and len(second.lines) == 1


def test_speed_of_peers() -> None:
    (chart,) = speed_charts(read([PEERS]))
    record = json.loads(PEERS.read_text())
    lines = {line.label: line.points for line in chart.lines}
    sections = record["peers"].values()
    for label in {section["label"] for section in sections}:  # some are measured more than once
        assert [depth for depth, *_ in lines[label]] == [0, 1024, 3000]
        rounds = [s["cases"]["decode-1024"] for s in sections if s["label"] == label]
        speeds = sorted(each["peer"]["tokens_per_second"] for own in rounds for each in own)
        assert lines[label][1][2:] == (speeds[0], speeds[-1])
        assert speeds[0] <= lines[label][1][1] <= speeds[-1]
    assert {"suffice bf16", "suffice int8", "suffice 4-bit"} <= set(lines)


def refused(tmp_path: Path, record: Any) -> str:
    with pytest.raises(InputError) as error:
        read([write(tmp_path / "x.json", record)])
    assert "\n" not in str(error.value)
    return str(error.value).replace(str(tmp_path / "x.json"), "x.json")


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    good = perplexity(1.25)
    ragged, nan, lost = copy.deepcopy(good), copy.deepcopy(good), copy.deepcopy(good)
    ragged["reads"]["rows_held"][0] = [1]
    nan["reads"]["kv_bytes_read"] = math.nan
    del lost["reads"]["key_rows_read"]
    peers = {key: good[key] for key in ("schema", "date", "command", "commit", "modified")}
    peers |= {"machine": {}, "versions": {}, "peers": {"x": {"label": "x"}}}
    for record, message in (
        ("", "x.json is not JSON, or not all of it: Expecting value in line 1"),
        (json.dumps(good)[:-9], "x.json is not JSON, or not all of it: "),
        ("[" * 100_000, "x.json is not JSON: it is not valid text (UTF-8), or is nested too"),
        (good | {"command": "\ud800"}, "x.json is not JSON: it is not valid text"),
        (
            json.dumps(good).replace('"steps": ', '"steps": ' + "1" * 400),
            "x.json: has a number of 40",
        ),
        ("3", "x.json is no result: it is neither a record with a 'schema' nor"),
        ({}, "x.json is no result"),
        (good | {"schema": 2}, "x.json has schema 2, this version reads 1: make the result again"),
        (good | {"kind": "perplexty"}, "unknown kind of result in x.json, 'perplexty'. Did you"),
        (good | {"kind": []}, "unknown kind of result in x.json, '[]'"),
        (good | {"command": 3}, "x.json: 'command' has the invalid value 3"),
        ({"schema": 1}, "x.json: 'date' is missing"),
        (good | {"result": None}, "x.json: 'result' has the invalid value null"),
        (good | {"reads": 3}, "x.json: reads: is no JSON object"),
        (ragged, "x.json: reads: key_rows_read, value_rows_read, rows_held must be numbers by"),
        (lost, "x.json: reads: key_rows_read, value_rows_read, rows_held must be numbers by"),
        (nan, "x.json: reads: 'kv_bytes_read' has the invalid value NaN"),
        ([], "x.json is an empty list: it has no result"),
        ([benched(0, 1.5), 3], "x.json: record 2: is no JSON object"),
        ([benched(0, True)], "x.json: record 1: 'tokens_per_second' has the invalid value"),
        (peers, "x.json: x: 'against' is missing"),
    ):
        assert refused(tmp_path, record).startswith(message)


def test_a_file_of_several_records_is_several_results(tmp_path: Path) -> None:
    records = {"a": perplexity(1.25), "b": perplexity(1.5)}
    file = tmp_path / "both.json"
    file.write_text(json.dumps({"schema": 1, "records": records}))
    first, second = read([file])
    assert [first.file, second.file] == ["both.json: a", "both.json: b"]
    assert [first.number, second.number] == [1, 2]
    assert [first.data, second.data] == list(records.values())
    records["b"]["schema"] = 2
    file.write_text(json.dumps({"records": records}))
    with pytest.raises(InputError, match="has schema 2"):
        read([file])
