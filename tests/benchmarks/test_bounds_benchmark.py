"""The benchmark of bounds and the truth: what it counts, and how it goes on after a stop."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from benchmarks.attention import bounds
from sample_text import OWLS

TEXT = OWLS * 120
CERTAIN = "tiers:bounded=true,eps=0.2,skip=0.001 @ planes"
PROBABLE = "tiers:eps=1,skip=0,sample=4,delta=0.05"


def test_windows_are_stored_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny.shallow(tmp_path / "model", max_position_embeddings=1024)
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.setattr(bounds, "TOKENS", 6)
    monkeypatch.setattr(bounds, "TOGETHER", 4)
    given = ["bounds", "--model", str(folder), "--text", str(tmp_path / "text.txt")]
    given += ["--depths", "200", "--threads", "1", "--out", str(tmp_path)]

    def run(*more: str, settings: tuple[str, ...] = (CERTAIN, PROBABLE)) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [*given, "--settings", *settings, *more])
        assert bounds.main() == 0
        found: dict[str, Any] = json.loads((tmp_path / "bounds.json").read_text())["cells"]
        return found

    once = run("--limit", "1")[PROBABLE]["200"]
    cells = run("--limit", "2")
    model = tiny_heads(folder)
    for setting, of_depth in cells.items():
        cell = of_depth["200"]
        assert cell["windows"] == 2 and cell["softmaxes"] == 2 * 6 * model
        assert 0 < cell["bytes"] < 1.2 and cell["ratio"] > 1
        assert 0 < cell["distance"]["0.5"] < cell["bound"]["0.5"] <= cell["bound"]["0.99"] <= 1
        assert cell["beyond"] == cell["beyond_output"] == 0
        assert cell["delta"] == pytest.approx(0.05 if setting == PROBABLE else 0)
        assert ("chance" in cell) == (setting == PROBABLE)
    assert cells[CERTAIN]["200"]["bound"]["0.99"] <= 0.2
    assert 2 * once["softmaxes"] == cells[PROBABLE]["200"]["softmaxes"]
    monkeypatch.setattr(bounds, "measured", lambda *_: pytest.fail("they are measured"))
    assert run("--limit", "2") == cells
    drawn = (tmp_path / "bounds.md").read_text()
    assert f"| `{PROBABLE}` | 200 |" in drawn and drawn in capsys.readouterr().out


def tiny_heads(folder: Path) -> int:
    """Return the softmaxes of a token."""
    config = json.loads((folder / "config.json").read_text())
    softmaxes: int = config["num_hidden_layers"] * config["num_attention_heads"]
    return softmaxes


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("tiers:eps=0.5", "settings must have bounds: tiers:bounded=true or tiers:sample=64"),
        ("tiers:eps=2", "tiers: eps=2.0: must be 0 or in"),
    ],
)
def test_errors_are_one_line(
    setting: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tiny.shallow(tmp_path / "model", max_position_embeddings=1024)
    (tmp_path / "text.txt").write_text(TEXT)
    given = ["--model", str(folder), "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path)]
    given += ["--settings", setting, "--depths", "100", "--limit", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["bounds", *given])
    capsys.readouterr()
    assert bounds.main() == 2
    assert words in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_the_first_windows_are_spread_over_the_text() -> None:
    for count in (1, 2, 7, 37, 140):
        order = bounds.spread(count)
        assert sorted(order) == list(range(count))
        for first in range(2, count + 1):
            gaps = np.diff(np.sort([*order[:first], count]))
            assert gaps.max() <= 2 * count / first + 1


def test_quantiles_are_hardly_too_large() -> None:
    values = np.exp(np.random.default_rng(0).standard_normal(5000))
    for share in (0.01, 0.5, 0.99):
        true = float(np.quantile(values, share, method="inverted_cdf"))
        assert true <= bounds.quantile(bounds.bins(values), share) <= 1.03 * true


def test_what_is_beyond_is_counted_by_its_place_in_the_group() -> None:
    counts = bounds.empty(3)
    found = np.zeros((5, 1, 2, 6))
    found[2:] = 0.05
    found[0, 0, 0, 4] = 0.06  # the second head of its group
    found[3, 0, 1, 0] = 0.07
    bounds.count(counts, found)
    assert counts["beyond"] == [0, 1, 0] and counts["beyond_output"] == 1
    assert counts["softmaxes"] == counts["within"] == 12 and counts["most"] == 0.05
    assert sum(counts["bound"]) == 12 and sum(counts["ratio"]) == 1


def test_the_chance_is_the_binomial_distribution_s() -> None:
    assert bounds.chance([0, 0], 50, 0.1) == 1
    tail = 1 - 0.9**50 - 50 * 0.1 * 0.9**49  # at least two of 50
    assert bounds.chance([2], 50, 0.1) == pytest.approx(tail)
    assert bounds.chance([1, 9, 3], 50, 0.1) == pytest.approx(3 * bounds.chance([9], 50, 0.1))
    assert bounds.chance([150], 1000, 0.1) < 1e-5 < 0.4 < bounds.chance([100], 1000, 0.1)
