"""The benchmark of attention at depth on a tiny model: types and tiers are told apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tiny
from benchmarks.attention import deep


def test_settings_attend_to_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.shallow(tmp_path / "model", max_position_embeddings=256)
    (tmp_path / "wikitext2-test-raw.txt").write_text("The owls look on; 0123456789 again. " * 200)
    asked = ["--data-dir", str(tmp_path), "--model", str(model), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["deep", *asked, "--quick"])
    assert deep.main() == 0
    found = json.loads((tmp_path / "out" / "deep.json").read_text())["rows"]
    assert [row["setting"] for row in found] == [f"`{setting}`" for setting in deep.SETTINGS]
    eight, planes, four, *tiers = found
    assert eight["int8 / this"] == 1 and all(row["ms a layer"] > 0 for row in found)
    for row in (eight, planes):
        assert (row["K read"], row["V read"]) == (1, 1)
        assert row["bytes read"] == pytest.approx((deep.SIZE + 4) / (2 * deep.SIZE))
        assert 0 < row["output error"] < 0.1
    assert planes["output error"] < four["output error"] / 2
    for row in tiers:
        assert row["K read"] < 1 and row["bytes read"] < eight["bytes read"]
        assert row["output error"] > planes["output error"]
