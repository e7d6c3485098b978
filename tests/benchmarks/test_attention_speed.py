"""The benchmark of decode steps on a tiny model: settings see the same tokens, and are counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.attention import speed
from suffice.attention import ATTENTIONS


@pytest.mark.parametrize("setting", speed.CHECKED)
def test_what_is_timed_as_overhead_does_not_run_as_exact_attention(setting: str) -> None:
    assert not ATTENTIONS.build(setting).rule().exact
    assert setting in speed.SETTINGS
    assert ATTENTIONS.build("art:change=0").rule().exact, "what would time nothing"
    assert ATTENTIONS.build("aet:keys=all,values=0").rule().exact


def test_all_settings_decode_the_same_text(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked += ["--depths", "100", "--steps", "5", "--weights", "none"]
    stored = ["exact @ int8", "tiers:eps=0.9,skip=0.001 @ planes"]
    asked += ["--settings", *stored, *speed.CHECKED, "certified:bounded=false,eps=0.9"]
    monkeypatch.setattr(sys, "argv", ["speed", *asked])
    assert speed.main() == 0
    found = json.loads((tmp_path / "out" / "speed.json").read_text())["rows"]
    assert [row["setting"] for row in found] == [
        "`exact`",
        *(f"`{setting}`" for setting in (*stored, *speed.CHECKED)),
        "`certified:bounded=false,eps=0.9`",
    ]
    exact, eight, tiers, *whole, sketched = found
    size = 16  # of the tiny model's heads
    assert eight["bytes read"] == pytest.approx((size + 4) / (2 * size))
    assert tiers["bytes read"] < eight["bytes read"] and tiers["K read"] < 1
    assert exact["exact / this"] == 1
    for row in (exact, *whole):
        assert (row["K read"], row["V read"], row["bytes read"]) == (1, 1, 1)
    assert sketched["K read"] < 1
    assert all(row["ms a step"] > 0 for row in found)
    assert exact["quartiles"] == "1 to 1"


def test_results_of_a_number_of_threads_have_their_own_file(
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked += ["--depths", "60", "--weights", "none", "--overhead", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["speed", *asked, "--steps", "4"])
    assert speed.main() == 0
    assert "2 steps at each depth, threads: 1," in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "speed_overhead_threads_1.json").read_text())["rows"]
    assert [row["K read"] for row in found] == [1, 1, 1]
    monkeypatch.setattr(sys, "argv", ["speed", *asked, "--steps", "3"])
    with pytest.raises(SystemExit):
        speed.main()
    assert "--steps 3: must be at least 4" in capsys.readouterr().err
