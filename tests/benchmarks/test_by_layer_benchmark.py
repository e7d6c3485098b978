"""ART with a threshold for each layer, on made-up costs and a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny
from benchmarks.attention import by_layer
from suffice.attention.art import ART

READ = np.array([[1.0, 0.5, 0.25], [1.0, 0.75, 0.5]])  # two layers, three thresholds
ERRORS = np.array([[0.0, 0.001, 0.01], [0.0, 0.3, 0.9]])


@pytest.mark.parametrize(
    ("most", "choice"),
    [(1.0, [0, 0]), (0.75, [1, 0]), (0.625, [2, 0]), (0.5, [2, 1]), (0.375, [2, 2])],
)
def test_what_costs_little_is_left_out_first(most: float, choice: list[int]) -> None:
    assert by_layer.chosen(READ, ERRORS, most).tolist() == choice


def test_a_threshold_that_never_stops_reads_all() -> None:
    random = np.random.default_rng(0)
    layer = random.standard_normal((4, 64)), *random.standard_normal((2, 2, 200, 64))
    assert by_layer.stopped(layer, ART(change=0, block=16)) == (1.0, 0.0)
    read, error = by_layer.stopped(layer, ART(change=10, angle=2, patience=2, block=16))
    assert read == 3 / 13 and error > 0.1, "the first check has none before it"


def test_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True, max_position_embeddings=256)
    (tmp_path / "text.txt").write_text("The owls look on; 0123456789 again and again. " * 30)
    asked = ["--model", str(model), "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["by_layer", *asked, "--length", "96", "--tokens", "4"])
    assert by_layer.main() == 0
    found = json.loads((tmp_path / "by_layer.json").read_text())
    assert [row["one threshold"] for row in found["rows"]] == list(by_layer.ONE)
    assert all(0 < row["blocks read by layer"] <= 1 for row in found["rows"])
    assert "| one threshold |" in (tmp_path / "by_layer.md").read_text()
