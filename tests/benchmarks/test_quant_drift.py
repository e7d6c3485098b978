"""Drift of codebooks and thresholds of activations: of made-up values, and of a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tiny
from benchmarks.quant import drift
from draws import normal


def test_the_same_values_do_not_drift() -> None:
    values = normal(64, 256, seed=1)
    *centroids, thresholds = drift.drift(values, values)
    assert centroids == [0, 0] and 0 < thresholds < 0.3, "tokens differ, centroids do not"


def test_what_drifts() -> None:
    """Thresholds with the scale; centroids, which are normalised, with the distribution alone."""
    values = normal(128, 256, seed=1)
    scaled = drift.drift(values, 3 * values)
    assert scaled[:2] == pytest.approx((0, 0), abs=1e-5) and scaled[2] > 1.7
    other = normal(128, 256, seed=2) ** 3
    assert min(drift.drift(values, other)[:2]) > 0.05


def test_outliers_move_the_centroids_that_include_them() -> None:
    values, other = normal(128, 256, seed=1), normal(128, 256, seed=2)
    other[:, 7] *= 30
    included, inliers, _ = drift.drift(values, other)
    assert included > 3 * inliers


def test_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    (tmp_path / "wikitext2-test-raw.txt").write_text("The owls look on; 0123456789 again. " * 30)
    (tmp_path / "other.txt").write_text("Who looks on? And when? " * 90)
    asked = ["--model", str(model), "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    asked += ["--calibrate", str(tmp_path / "other.txt"), "--window", "64", "--limit", "2"]
    monkeypatch.setattr(sys, "argv", ["drift", *asked])
    assert drift.main() == 0
    found = json.loads((tmp_path / "out" / "drift.json").read_text())
    assert list(found["drift"]) == ["qkv", "o", "gate_up", "down"]
    assert all(min(each) > 0 for own in found["drift"].values() for each in own)
    text = (tmp_path / "out" / "drift.md").read_text()
    assert "2 windows of 64 tokens each of other.txt" in text and "| qkv | " in text
