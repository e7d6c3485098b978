"""The benchmark of prompts whose tiles choose what they read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tiny
from benchmarks.attention import prompts
from commands import Cli
from sample_text import OWLS

TEXT = OWLS * 120


def test_times_and_quality_are_stored_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny.make(tmp_path / "model", "llama", tokenizer=True, max_position_embeddings=2048)
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.setattr(prompts, "WINDOW", 1200)
    monkeypatch.setattr(prompts, "FOLLOWING", 12)
    setting = "tiers:eps=0,skip=0,prompt=0.3"

    def run(*more: str) -> int:
        given = ["--model", str(folder), "--text", str(tmp_path / "text.txt"), "--limit", "2"]
        given += ["--settings", setting, "--lengths", "1150", "--threads", "1"]
        monkeypatch.setattr(sys, "argv", ["prompts", *given, "--out", str(tmp_path), *more])
        return prompts.main()

    assert run() == 0 and run("--quality") == 0
    cells = json.loads((tmp_path / "prompts.json").read_text())["cells"]
    assert cells["exact"]["1150"]["ratio"] == 1 and cells["exact"]["1150"]["read"] == 1
    time, quality = cells[setting]["1150"], cells[setting]["quality"]
    assert 0 < time["read"] < 1 and time["seconds"] > 0
    assert 0 < quality["read"] < 1 and quality["divergence"] > 0
    drawn = (tmp_path / "prompts.md").read_text()
    assert f"| 1150 | `{setting}` |" in drawn and "text.txt" not in drawn
    monkeypatch.setattr(prompts, "quality", lambda *_: pytest.fail("it is measured"))
    assert run("--quality") == 0
    capsys.readouterr()
    assert run("--settings", "tiers:prompt=2") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_softmax_by_codes_changes_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cli: Cli
) -> None:
    folder = tiny.make(tmp_path / "model", "llama", tokenizer=True, max_position_embeddings=512)
    text, found = tmp_path / "text.txt", tmp_path / "found.json"
    text.write_text(TEXT)
    asked = ["--model", str(folder), "--text", str(text)]
    assert cli("calibrate", *asked, "--window", "100", "--limit", "2", "-o", str(found)).code == 0
    monkeypatch.setattr(prompts, "WINDOW", 300)
    monkeypatch.setattr(prompts, "FOLLOWING", 12)
    setting = "exaq:bits=2,prefill=true"
    asked += ["--out", str(tmp_path), "--limit", "1", "--lengths", "200", "--threads", "1"]
    asked += ["--settings", setting, "exaq:bits=2"]
    monkeypatch.setattr(sys, "argv", ["prompts", *asked, "--quality"])
    assert prompts.main() == 2
    assert "needs a calibration" in capsys.readouterr().err
    unneeded = [*asked[:-3], "--settings", "aet", "--calibration", str(found)]
    monkeypatch.setattr(sys, "argv", ["prompts", *unneeded])
    assert prompts.main() == 2
    assert "no setting needs one: leave it out" in capsys.readouterr().err
    for more in ([], ["--quality"]):
        given = [*asked, "--calibration", str(found), *more]
        monkeypatch.setattr(sys, "argv", ["prompts", *given])
        assert prompts.main() == 0, capsys.readouterr().err
    cells = json.loads((tmp_path / "prompts.json").read_text())["cells"]
    assert cells[setting]["200"]["read"] == 1
    assert cells[setting]["quality"]["divergence"] != cells["exaq:bits=2"]["quality"]["divergence"]
