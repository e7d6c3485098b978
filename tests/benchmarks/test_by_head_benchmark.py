"""The benchmark of thresholds by head: rows of calibrations and of settings for all heads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tiny
from benchmarks.attention import by_head
from commands import Cli
from sample_text import OWLS

SETTINGS = "tiers:eps=0.5,skip=0.001", "art:change=1e-2,angle=2,patience=1,block=16,order=sketch"


def test_rows_are_named_by_what_is_found_for_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cli: Cli
) -> None:
    folder = tiny.shallow(tmp_path / "model", max_position_embeddings=512)
    text, files = tmp_path / "text.txt", []
    text.write_text(OWLS * 40)
    asked = ["--model", str(folder), "--text", str(text)]
    planes = ["-ctk", "planes", "-ctv", "planes"]
    art = "art:angle=2,patience=1,block=16,order=sketch"
    for technique, types in (("tiers", planes), ("tiers:skip=0.001", planes), (art, [])):
        files.append(str(tmp_path / f"{len(files)}.json"))
        more = ["--window", "120", "--limit", "1", "--budget", "30%", "--attention", technique]
        assert cli("calibrate", *asked, *more, *types, "-o", files[-1]).code == 0
    asked += ["--out", str(tmp_path), "--window", "150", "--limit", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["by_head", *files, *asked, "--settings", *SETTINGS])
    assert by_head.main() == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "by_head.json").read_text())
    names = [f"{SETTINGS[0]} @ planes", SETTINGS[1], "eps and skip of tiers by head, budget 30 %"]
    names += ["eps of tiers by head, skip=0.001, budget 30 %"]
    names += ["change of art by head, angle=2.0, patience=1, block=16, order=sketch, budget 30 %"]
    assert list(found["cells"]) == names
    cells = [each["windows"] for each in found["cells"].values()]
    assert all(cell["divergence"] > 0 for cell in cells)
    for name, cell in zip(names, cells, strict=True):
        assert 0 < cell["bytes"] < (0.7 if "tiers" in name else 1.2), (
            name
        )  # art reads sketches, too
    assert len({cell["bytes"] for cell in cells}) == 5
    drawn = (tmp_path / "by_head.md").read_text()
    assert f"| `{names[0]}` |" in drawn and f"| {names[2]} |" in drawn
    monkeypatch.setattr(by_head, "measured", lambda *_: pytest.fail("it is measured"))
    assert by_head.main() == 0


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ('{"schema": 2, "model": {"name": "m", "hash": "ab", "heads": 2}}', "is no JSON of"),
        (None, "cannot be read"),
        (
            '{"schema": 2, "model": {"name": "m", "hash": "ab", "heads": 2}, "attention": {'
            '"aet": {"options": {}, "thresholds": [[0.9]]}, '
            '"art": {"options": {}, "thresholds": [[0.1]]}}}',
            "has thresholds of aet and art, one is compared",
        ),
    ],
)
def test_a_file_that_is_no_calibration(
    stored: str | None,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tiny.shallow(tmp_path / "model")
    path = tmp_path / "found.json"
    if stored is not None:
        path.write_text(stored)
    asked = [str(path), "--model", str(folder), "--out", str(tmp_path), "--settings"]
    monkeypatch.setattr(sys, "argv", ["by_head", *asked])
    assert by_head.main() == 2
    assert message in capsys.readouterr().err
