"""The benchmark of base planes runs, and codes with as many levels as values leave nothing out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny
from benchmarks.attention import sketch


def test_codes_of_few_values_are_exact() -> None:
    """16 even values by channel are on the even grid; two values are levels of any codebook."""
    steps = np.random.default_rng(0).integers(16, size=(2, 3, 64, 16))
    steps[..., :2, :] = np.array([0, 15])[:, None]
    keys = (2 * steps - 8).astype(np.float32)
    np.testing.assert_array_equal(sketch.even(keys), keys)
    signs = np.where(np.arange(64) % 2 == 0, 1.0, -1.0)[:, None]
    keys = (signs * np.arange(1.0, 17.0) + 3).astype(np.float32)
    np.testing.assert_allclose(sketch.learned(keys), keys, rtol=1e-4, atol=1e-4)


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True, max_position_embeddings=1024)
    text = tmp_path / "text.txt"
    text.write_text("The owls look on; 0123456789 again and again, as they have done. " * 40)
    monkeypatch.setattr(sketch, "QUICK", tmp_path / "out")
    asked = ["--quick", "--model", str(model), "--calibrate", str(text)]
    monkeypatch.setattr(sys, "argv", ["sketch", *asked])
    assert sketch.main() == 0
    rows = json.loads((tmp_path / "out" / "sketch.json").read_text())["rows"]
    assert [row[0] for row in rows] == ["even, as stored", "K-means"]
    assert all(row[1] > 0 and row[2] > 0 for row in rows) and rows[0][3] == 1
