"""Scrooge's benchmark on a tiny model: its table is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tiny
from benchmarks.hw import scrooge
from suffice.cli.hw import trace as hw_trace
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice_hw.scrooge.logits import Trace


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "llama", tokenizer=True, head_dim=32)


def test_the_table_of_a_model(model: Path, tmp_path: Path) -> None:
    tokens = torch.randint(3, 200, (90,), generator=torch.Generator().manual_seed(0)).tolist()
    _, runner, _ = load(Config.create(model, dtype="float32", threads=1))
    hw_trace.write(runner, "tiny", tokens, tmp_path / "t.npz")
    rows = scrooge.measure(Trace.load(tmp_path / "t.npz"))
    names = [row["setting"].partition(":")[0] for row in rows]
    assert names == ["S", "S", "AS", "AS", "0.95 / 0.001", "0.8 / 0.001"]
    assert 1 <= rows[4]["K"] <= rows[0]["K"] <= rows[5]["K"] <= rows[2]["K"]


def test_losses_are_those_of_the_same_algorithm() -> None:
    stored = json.loads(scrooge.QUALITY.read_text())["records"]
    for thresholds, setting in (
        ((0.9, 0.001), "aet:keys=0.9,block=1"),
        ((0.6, 0.005), "aet:keys=0.6,values=0.005,block=1"),
    ):
        ratio = stored[setting]["result"]["against"]["ratio"]
        assert scrooge.loss(thresholds).startswith(f"{100 * (ratio - 1):+.2f} ")
    assert scrooge.loss((0.123, 0.001)) == ""
