"""The benchmarks of attention by codes, at tiny sizes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tiny
from benchmarks.attention import exaq, exaq_tail
from commands import Cli
from sample_text import OWLS
from suffice import native
from suffice.native import core

TEXT = OWLS * 30


def test_the_kernel_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exaq, "QUICK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["exaq", "--quick"])
    before = core.isa()
    assert exaq.main() == 0 and core.isa() == before
    found = json.loads((tmp_path / "exaq.json").read_text())
    names = [f"`{name}`" for name in exaq.SOFTMAXES]
    assert [row[0] for row in found["rows"]] == names
    assert found["rows"][0][3] == 1 > found["rows"][1][3], "by codes few values are read"
    assert [row[:2] for row in found["softmax_rows"]] == [
        [isa, name] for isa in native.isas() for name in [*names, f"`{exaq.PACKED}`"]
    ]


def test_the_tail(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.shallow(tmp_path / "model", max_position_embeddings=256)
    (tmp_path / "wikitext2-test-raw.txt").write_text(TEXT)
    path = tmp_path / "found.json"
    asked = ["-m", str(model), "--text", str(tmp_path / "wikitext2-test-raw.txt")]
    assert cli("calibrate", *asked, "--window", "100", "--limit", "2", "-o", str(path)).code == 0
    asked = ["--data-dir", str(tmp_path), "--calibration", str(path), "--model", str(model)]
    monkeypatch.setattr(exaq_tail, "QUICK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["exaq_tail", "--quick", *asked])
    assert exaq_tail.main() == 0
    rows = json.loads((tmp_path / "exaq_tail.json").read_text())["rows"]
    assert [row[1] for row in rows] == [f"`{setting}`" for setting in exaq_tail.SETTINGS]
    assert all(row[0] == 128 and row[2] > 0 and 0 < row[6] < 1 for row in rows)
