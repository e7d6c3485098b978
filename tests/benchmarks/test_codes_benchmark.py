"""What KLLM's accelerator counts in a tiny model: pairs by a loop, and the file is read back."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tiny
from benchmarks.hw import codes
from sample_text import OWLS
from suffice_hw.kllm.codes import RealCodes, mean


def test_filled_bins_are_different_pairs() -> None:
    random = np.random.default_rng(0)
    x, weight = random.integers(0, 16, 200), random.integers(0, 16, (7, 200))
    pairs = [len(set(zip(x.tolist(), row.tolist(), strict=True))) for row in weight]
    assert codes.filled_bins(x.astype(np.uint8), weight.astype(np.uint8)).tolist() == pairs


def test_scores_are_those_of_the_softmax() -> None:
    found, keys = codes.Counted(), np.zeros((1, 20, 16), np.float32)
    keys[0, 3, 0] = 9.0  # e^-9 of the heaviest is below half of a step of 1 / 255
    q = np.zeros((2, 20, 16), np.float32)
    q[0, 17, 0] = 1.0
    q[:, :, 1], keys[0, :, 2] = 0.01, 0.01  # so that codebooks have something to learn
    found.heads(q, keys, 1.0, 17)
    assert found.counted == [1 / 18, 1.0]
    assert sum(found.scored.values()) == 2, "18 keys are one whole wave of 16 for each head"


def test_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make(tmp_path / "model", tokenizer=True, max_position_embeddings=256)
    (tmp_path / "wikitext2-test-raw.txt").write_text(OWLS * 20)
    asked = ["codes", "--model", str(model), "--data-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*asked, "--quick", "--out", str(tmp_path)])
    assert codes.main() == 0
    found = RealCodes.load(str(tmp_path / "model.toml"))
    shape = found.shape
    for kind, (outputs, inputs) in zip(found.matrices, shape.linears, strict=True):
        columns, waves = Counter(dict(kind["columns"])), Counter(dict(kind["waves"]))
        assert (kind["outputs"], kind["inputs"]) == (outputs, inputs)
        assert columns.total() == shape.layers * outputs
        assert waves.total() == shape.layers * -(-outputs // found.lanes)
        assert mean(kind["columns"]) <= mean(kind["waves"]) <= min(256, inputs)
    assert 0 < found.scores_counted <= 1
    assert [each["inputs"] for each in found.thresholds] == sorted({shape.width, shape.hidden})
