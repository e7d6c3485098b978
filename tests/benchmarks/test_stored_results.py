"""The stored results are whole: their tables can be drawn again from what the summaries keep."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import redraw
from benchmarks.harness import record

BENCHMARKS = record.ROOT / "benchmarks"


def test_every_kind_of_result_is_there_or_has_the_script_that_makes_it() -> None:
    for pattern in redraw.DRAWN:
        script = (BENCHMARKS / pattern.replace("results/", "")).with_suffix(".py")
        assert list(BENCHMARKS.glob(pattern)) or script.is_file(), pattern
    assert not list(BENCHMARKS.rglob("*.part"))


def test_stored_tables_can_be_drawn_again() -> None:
    for path, drawn in redraw.stored().items():
        assert drawn == path.with_suffix(".md").read_text().rstrip("\n"), path.name


def test_details_are_what_the_summary_was_made_of() -> None:
    folder = BENCHMARKS / "attention" / "results"
    for path in folder.glob("quality*.json"):
        details = record.read_details(folder, path.stem)
        records = json.loads(path.read_text())["records"]
        assert details.keys() == records.keys()
        for setting, counts in details.items():
            for name, by_head in counts.items():
                ((mean,),) = records[setting]["reads"][name]
                assert mean == sum(map(sum, by_head)) / sum(map(len, by_head)) > 0


def test_details_are_read_as_they_were_written(tmp_path: Path) -> None:
    details = {"a": [[1, 2.5], None], "b": {"c": "d"}}
    assert record.read_details(tmp_path, "some") == {}
    record.write_details(tmp_path, "some", details)
    path = tmp_path / "some.details.json.gz"
    before = path.read_bytes()
    assert record.read_details(tmp_path, "some") == details
    record.write_details(tmp_path, "some", details)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
