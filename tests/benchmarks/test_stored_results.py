"""The stored results are whole: their tables can be drawn again from what the summaries keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import redraw
from benchmarks.attention import longbench, ruler
from benchmarks.attention import tasks as softmax_tasks
from benchmarks.harness import record
from benchmarks.harness.tables import CellStore
from benchmarks.quant import tasks

BENCHMARKS = record.ROOT / "benchmarks"


def test_every_kind_of_result_is_there_or_has_the_script_that_makes_it() -> None:
    for pattern in redraw.DRAWN:
        stem = pattern.replace("results/", "").removesuffix(".json").rstrip("_*")
        assert list(BENCHMARKS.glob(pattern)) or (BENCHMARKS / f"{stem}.py").is_file(), pattern
    assert not list(BENCHMARKS.rglob("*.part"))


def test_stored_tables_can_be_drawn_again() -> None:
    for path, drawn in redraw.stored().items():
        assert drawn == path.with_suffix(".md").read_text().rstrip("\n"), path.name


MODEL = {"model": "m", "dtype": "float32", "kv_cache_dtype": "bfloat16", "quant": "none"}
BYTES = {"kv_bytes_read": 4, "kv_bytes_held": 8}
ANSWERS = {"questions": 9, "acc": 0.5, "acc_stderr": 0.1, "change": -1.0, "change_stderr": 0.2}
# Of each kind: its folder and name, the table's function, its configuration, and cells.
SMALL: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "attention/longbench_m": (
        longbench.table,
        MODEL | {"length": 640},
        {"multi_news 0": {"exact": {"scores": [1.0, 3.0]} | BYTES}},
    ),
    "attention/ruler_m": (
        ruler.table,
        MODEL,
        {"niah_single_1 at 900": {"exact": {"score": 90.0, "samples": 3} | BYTES}},
    ),
    "attention/tasks_m": (
        softmax_tasks.table,
        {"model": "m", "limit": None},
        {"piqa": {"exact": ANSWERS, "exaq:bits=2": ANSWERS}},
    ),
    "quant/tasks_m_arc_easy": (
        tasks.table,
        {"model": "m", "task": "arc_easy", "questions": 9},
        {"arc_easy": {"none": ANSWERS | {"acc_norm": None, "acc_norm_stderr": None}}},
    ),
}


def test_a_result_of_each_kind_of_cells_is_drawn_by_its_own_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redraw, "ROOT", tmp_path)
    for place, (table, config, cells) in SMALL.items():
        folder, _, name = place.partition("/")
        home = tmp_path / "benchmarks" / folder / "results"
        CellStore(home, name, config, {}, table, cells).write()
    drawn = redraw.stored()
    assert len(drawn) == len(SMALL)
    for path, text in drawn.items():
        assert text == path.with_suffix(".md").read_text().rstrip("\n"), path.name
        assert "±" in text or "(0.50)" in text or "| 1.000 |" in text, "it has a row"


def test_details_are_what_the_summary_was_made_of() -> None:
    folder = BENCHMARKS / "attention" / "results"
    for path in folder.glob("quality*.json"):
        details = record.read_details(folder, path.stem)
        records = json.loads(path.read_text())["records"]
        assert details.keys() == records.keys()
        for setting, counts in details.items():
            for name, by_head in counts.items():
                ((mean,),) = records[setting]["reads"][name]
                assert mean == sum(map(sum, by_head)) / sum(map(len, by_head))
                assert mean > 0 or name != "rows_held"  # tiers:eps=1 reads no key exactly


def test_details_are_read_as_they_were_written(tmp_path: Path) -> None:
    details = {"a": [[1, 2.5], None], "b": {"c": "d"}}
    assert record.read_details(tmp_path, "some") == {}
    record.write_details(tmp_path, "some", details)
    path = tmp_path / "some.details.json.gz"
    before = path.read_bytes()
    assert record.read_details(tmp_path, "some") == details
    record.write_details(tmp_path, "some", details)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
