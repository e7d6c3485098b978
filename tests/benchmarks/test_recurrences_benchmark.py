"""The benchmark of recurrences: its counts, and that its quick run measures each kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.engine import recurrences
from benchmarks.harness import record


def test_multiply_adds_are_counted_by_kind() -> None:
    assert recurrences.products(recurrences.short("qwen3.5-4b")) == 512 * 3 * 32 * 128 * 128 * 4
    mamba = recurrences.short("granite-4.0-h-tiny")
    assert recurrences.products(mamba) == 512 * 3 * 48 * 128 * 64 * 3


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BUILD", tmp_path)
    monkeypatch.setattr(recurrences, "FILES", tmp_path)
    monkeypatch.setattr(recurrences, "TOKENS", 20)
    options = ["--quick", "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["recurrences", *options])
    assert recurrences.SCRIPT.main() == 0
    found = json.loads((tmp_path / "out" / "recurrences.json").read_text())["settings"]
    assert set(found) == {"qwen3.5-4b", "granite-4.0-h-tiny"}
    for figures in found.values():
        assert 0 < figures["of_peak"] < 1 and 0 < figures["of_time"] < 1
