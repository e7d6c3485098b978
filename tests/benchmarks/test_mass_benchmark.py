"""How attention spreads over tokens, and the best clips: on known rows, and on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny
from benchmarks.attention import mass
from suffice.attention.exaq import error_of_clip, solved


def test_heaviest_keys_are_counted_first() -> None:
    x = np.log(np.array([[0.1, 1.0, 0.5, 0.25, 0.15], [1.0, 1e-30, 1e-30, 1e-30, 1e-30]]))
    assert mass.tokens_for(x, (0.45, 0.7, 0.8, 0.97)).tolist() == [[1, 2, 3, 5], [1, 1, 1, 1]]
    padded = np.concatenate((x, np.full((2, 3), -np.inf)), axis=-1)
    assert mass.tokens_for(padded, (0.45, 0.97)).tolist() == [[1, 5], [1, 1]]


def test_inputs_are_relative_to_the_largest_score() -> None:
    random = np.random.default_rng(0)
    q, k = random.standard_normal((4, 16)), random.standard_normal((2, 9, 16))
    x = mass.inputs((q, k, k), 12)
    assert x.shape == (4, 12) and (x[:, :9].max(-1) == 0).all() and (x[:, 9:] == -np.inf).all()
    scores = k[1] @ q[3]
    np.testing.assert_allclose(x[3, :9], scores - scores.max(), atol=1e-5)


@pytest.mark.parametrize("bits", [2, 3])
def test_the_search_finds_what_equation_5_does_on_normal_inputs(bits: int) -> None:
    random = np.random.default_rng(1)
    x = np.minimum(random.standard_normal((60, 1000)) * 1.5 - 3.24 * 1.5, 0)
    found = mass.searched(x, bits, mass.single)
    best = solved(bits, 1.5, 1)
    assert error_of_clip(bits, 1.5, found) == pytest.approx(error_of_clip(bits, 1.5, best), rel=0.1)
    together = mass.searched(x, bits, mass.summed)
    assert together < found - 0.5, "errors of clipped keys add up"
    padded = np.concatenate((x, np.full((60, 9), -np.inf)), axis=-1)
    assert mass.searched(padded, bits, mass.single) == found


def test_the_tables_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.shallow(tmp_path / "model", head_dim=32)
    text = tmp_path / "text.txt"
    text.write_text("The owls look on; 0123456789 again. " * 30)
    asked = ["--quick", "--model", str(model), "--text", str(text), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["mass", *asked])
    assert mass.main() == 0
    found = json.loads((tmp_path / "mass.json").read_text())
    assert found["tokens"] == 2 and [each["layer"] for each in found["layers"]] == [0, 1]
    for each in found["layers"]:
        counts = [each[f"{share:g}"] for share in mass.SHARES]
        assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] <= 64
        assert all(each[name] < 0 for name in each if name.startswith("C"))
    monkeypatch.setattr(sys, "argv", ["mass", "--model", str(model), "--text", "nothing.txt"])
    assert mass.main() == 2
