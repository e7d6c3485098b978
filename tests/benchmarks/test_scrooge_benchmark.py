"""Scrooge's benchmark on a tiny model: its table is whole."""

from __future__ import annotations

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
    assert [row["setting"].partition(":")[0] for row in rows] == ["S", "S", "AS", "AS"]
    assert 1 <= rows[0]["K"] <= rows[2]["K"]
