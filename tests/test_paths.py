"""Files that are written as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from suffice.paths import write_whole


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
