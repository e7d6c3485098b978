"""The benchmark of prompts on disk, in a tiny shape: it runs, and measures what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.engine import kept_prompts


def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kept_prompts", "--quick", "--output", str(tmp_path)])
    kept_prompts.run()
    data = json.loads((tmp_path / "kept_prompts.json").read_text())
    (own,) = data["restarts"].values()
    assert own["tokens"] == 200 and own["computed"] > 0 and own["read"] > 0
    assert list(data["types"]) == list(kept_prompts.TYPES)
    assert all(1 <= each["over_rows"] < 1.02 for each in data["types"].values())
    table = (tmp_path / "kept_prompts.md").read_text()
    assert kept_prompts.NOTE in table and "| tiny |" in table
