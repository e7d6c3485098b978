"""What a record says of how it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from suffice.eval import record
from suffice.eval.record import facts


def test_the_command_can_be_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFICE_WINDOW", "64")
    monkeypatch.setenv("SUFFICE_DATA_DIR", "/somebody/data sets")
    monkeypatch.setenv("SUFFICE_CACHE", "/somebody/models")
    arguments = ["eval", "--text", "/home/a b.txt", "-m/home/model", "--o=/x/y", "-b", "2", "a/b"]
    assert facts("suffice", arguments)["command"] == (
        "SUFFICE_DATA_DIR='data sets' SUFFICE_WINDOW=64 "
        "suffice eval --text 'a b.txt' -mmodel --o=y -b 2 a/b"
    )


def test_without_git_nothing_is_known_of_the_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = facts("suffice", [])
    assert found["commit"] is None and found["modified"] is None


def test_another_repository_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        record, "__file__", str(tmp_path / "lib" / "site" / "suffice" / "record.py")
    )
    assert facts("suffice", [])["commit"] is None
