"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import record
from suffice.attention import calibration
from suffice.cache import machine
from suffice.checkpoints.formats import quantized_file
from suffice.eval import report
from suffice.paths import unfinished, write_whole
from suffice_hw import runs
from suffice_hw.dram import model as dram
from suffice_hw.scrooge.logits import TraceWriter


def write_trace(path: Path) -> None:
    with TraceWriter(path, "m", 1, 8) as writer:
        writer.add(np.zeros((1, 2, 2)))


WRITERS: dict[str, Callable[[Path], object]] = {
    "calibration": lambda path: calibration.write(path, {}),
    "dram": lambda path: dram._write(path, "x"),
    "machine.json": lambda path: machine.save(machine.DEFAULT),
    "quantized": lambda path: quantized_file.write_part(path, {}, {}),
    "report": lambda path: report.write(path, "x"),
    "summary.json": lambda path: runs.write(path.parent, {"summary.json": {"a": 1}}),
    "table.md": lambda path: record.write(path.parent, "table", {}, "x"),
    "trace.npz": write_trace,
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_writes_files_leaves_others_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other files of similar names stay; the written file has the permissions of new files."""
    monkeypatch.setenv("SUFFICE_CACHE", str(tmp_path))
    others = [tmp_path / f"{name}.part", tmp_path / f".{name}.part"]
    for other in others:
        other.write_text("somebody else's")
    before = os.umask(0o027)
    try:
        WRITERS[name](tmp_path / name)
    finally:
        os.umask(before)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o640
    assert [other.read_text() for other in others] == ["somebody else's"] * 2
    assert sorted(tmp_path.glob("*.part")) == sorted(others)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    with write_whole(path) as part:
        part.write_text("new")
        part.chmod(0o600)
        assert path.read_text() == "old"
    (tmp_path / "usual").touch()
    assert path.read_text() == "new"
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    (tmp_path / "x.json.part").write_text("somebody else's")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), write_whole(path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == before


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with write_whole(path) as first, write_whole(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first", "the one that was renamed last"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x[1].json"
    with write_whole(path) as part:
        assert unfinished(path) == [part]
        (tmp_path / "x[1].json.part").touch()
        (tmp_path / "x[1].json-notes.part").touch()
        (tmp_path / f"y{part.name[1:]}").touch()
        assert unfinished(path) == [part]
    assert unfinished(path) == []
