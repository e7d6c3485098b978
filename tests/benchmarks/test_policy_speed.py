"""The benchmark of ART over policies, on a tiny model: who reads how much of the same text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.attention import policy_speed

SETTINGS = [
    "exact",
    "art:change=10,angle=2,patience=1,block=16",
    "snapkv:ratio=0.5,window=16",
    "snapkv:ratio=0.5,window=16 + art:change=10,angle=2,patience=1,block=16",
    "h2o:ratio=0.5 + art",
]


def test_settings_decode_the_same_text(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked += ["--depths", "96", "--batches", "1", "3", "--steps", "5", "--settings", *SETTINGS]
    monkeypatch.setattr(sys, "argv", ["policy_speed", *asked])
    monkeypatch.setattr(policy_speed, "TOGETHER", 2)  # two groups
    assert policy_speed.main() == 0
    data = json.loads((tmp_path / "out" / "policy_speed.json").read_text())
    assert list(data["refused"]) == [SETTINGS[-1]]
    rows = data["rows"]
    shape = [(row["batch"], row["setting"].strip("`")) for row in rows]
    assert shape == [(batch, setting) for batch in (1, 3) for setting in SETTINGS[:-1]]
    for exact, art, policy, both in (rows[:4], rows[4:]):
        assert exact["bytes over exact's"] == 1 == exact["times exact"]
        assert art["bytes over exact's"] < 1 > policy["bytes over exact's"]
        assert both["bytes over exact's"] < policy["bytes over exact's"]
    for row in rows:
        assert row["tokens/s"] == pytest.approx(1000 * row["batch"] / row["ms a step"])
    for one, three in zip(rows[:4], rows[4:], strict=True):
        assert one["bytes over exact's"] == pytest.approx(three["bytes over exact's"])


def test_published_settings_are_measured() -> None:
    assert policy_speed.PUBLISHED.keys() <= set(policy_speed.SETTINGS)


def test_steps_that_are_not_timed(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["policy_speed", *asked, "--steps", "2"])
    assert policy_speed.main() == 2
    assert "--steps=2: must be above 2, which are not timed" in capsys.readouterr().err
