"""Parts of a result that several processes measured, joined."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attention import selection
from benchmarks.harness import merge_cells, record
from benchmarks.harness.tables import CellStore

CONFIG = {
    "model": {"name": "model", "hash": "abc"},
    "evaluated": {"windows": 1, "window": 64, "prompt": 32, "sha256": ""},
}
FACTS = {"schema": 1, "commit": "abc", "machine": {"cpu": "one"}}
COMMAND = "python -m benchmarks.attention.selection --settings"

Merge = Callable[..., int]


def cell(share: float) -> dict[str, Any]:
    figures = dict.fromkeys(("divergence", "divergence_999", "agreement"), 0.5)
    return {"bytes": share, "ratio": 1.25, "ratio_error": None, **figures}


def part(folder: Path, cells: dict[str, float], **changed: Any) -> Path:
    facts = FACTS | {"date": f"2026-01-0{len(cells)}", "command": f"{COMMAND} {' '.join(cells)}"}
    facts |= {name: each for name, each in changed.items() if name != "engine"}
    store = CellStore(
        folder, "selection", CONFIG | changed.get("engine", {}), facts, selection.table
    )
    for setting, share in cells.items():
        store.keep(setting, selection.COLUMN, cell(share))
    return folder / "selection.json"


@pytest.fixture
def merge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Merge:
    def merge(*paths: Path) -> int:
        arguments = ["merge_cells", str(tmp_path / "out"), *map(str, paths)]
        monkeypatch.setattr(sys, "argv", arguments)
        return merge_cells.main()

    return merge


def test_parts_are_joined(merge: Merge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = part(tmp_path / "a", {"oracle": 0.1, "sparq": 0.25})
    second = part(tmp_path / "b", {"twilight": 0.2})
    record.write_details(tmp_path / "b", "selection", {"twilight": {"decode": [1, 2]}})
    assert merge(first, second) == 0
    found = json.loads((tmp_path / "out" / "selection.json").read_text())
    assert {row: own["decode"]["bytes"] for row, own in found["cells"].items()} == {
        "oracle": 0.1,
        "sparq": 0.25,
        "twilight": 0.2,
    }
    assert found["command"] == f"{COMMAND} oracle sparq & {COMMAND} twilight"
    assert found["date"] == "2026-01-01" and found["engine"] == CONFIG
    assert {name: found[name] for name in FACTS} == FACTS
    drawn = (tmp_path / "out" / "selection.md").read_text()
    assert drawn == capsys.readouterr().out
    names = [line.split("`")[1] for line in drawn.splitlines() if line.startswith("| `")]
    assert names == ["oracle", "twilight", "sparq"]
    assert record.read_details(tmp_path / "out", "selection") == {"twilight": {"decode": [1, 2]}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"engine": {"device": "cuda"}}, "engine of"),
        ({"machine": {"cpu": "another"}}, "machine of"),
        ({"commit": "def"}, "commit of"),
        ({"more": 1}, "more of"),
    ],
)
def test_parts_of_different_runs(
    merge: Merge,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    message: str,
) -> None:
    first = part(tmp_path / "a", {"oracle": 0.1})
    assert merge(first, part(tmp_path / "b", {"twilight": 0.2}, **changed)) == 2
    error = capsys.readouterr().err
    assert f"merge_cells: error: {message}" in error and "must be the same" in error
    assert error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_cell_of_two_parts(
    merge: Merge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, same = (part(tmp_path / name, {"oracle": 0.1}) for name in "ab")
    assert merge(first, same) == 0
    capsys.readouterr()
    assert merge(first, part(tmp_path / "c", {"oracle": 0.2})) == 2
    assert "its cell oracle, decode differs from an earlier part's" in capsys.readouterr().err


def test_what_is_no_part(merge: Merge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = part(tmp_path / "a", {"oracle": 0.1})
    other = first.rename(tmp_path / "a" / "other.json")
    first = part(tmp_path / "a", {"oracle": 0.1})
    plain = tmp_path / "plain.json"
    plain.write_text("{}")
    unknown = part(tmp_path / "b", {"oracle": 0.1}, command="python -m benchmarks.harness.record")
    for paths, message in (
        ([first, other], "have different names"),
        ([plain], "is no result that is stored cell by cell"),
        ([tmp_path / "none.json"], "cannot be read"),
        ([unknown], "no known benchmark wrote it"),
    ):
        assert merge(*paths) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
