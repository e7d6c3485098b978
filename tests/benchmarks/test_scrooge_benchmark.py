"""Scrooge's benchmark on a tiny model: its logits are the model's, and its table is whole."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from suffice.engine.config import Config
from suffice.engine.runner import load

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import scrooge


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "llama", tokenizer=True, head_dim=32)


def test_a_trace_is_the_models_and_does_not_depend_on_chunks(model: Path) -> None:
    tokens = torch.randint(3, 200, (90,), generator=torch.Generator().manual_seed(0)).tolist()
    traces = []
    for chunk in (24, 90):
        _, runner, _ = load(Config.create(model, dtype="float32", threads=1, prefill_chunk=chunk))
        traces.append(scrooge.capture(runner, "tiny", tokens))
        config = runner.decoder.config
    first, second = traces
    assert first.shape == second.shape
    assert (first.shape.layers, first.tokens, first.head_size) == (len(config.layers), 90, 32)
    for ours, theirs in zip(first.layers, second.layers, strict=True):
        assert np.abs(np.tril(ours).astype(float) - np.tril(theirs)).max() < 2e-3
    assert np.abs(np.tril(first.layers[0])).max() > 0
    rows = scrooge.measure(first)
    assert [row["setting"].partition(":")[0] for row in rows] == ["S", "S", "AS", "AS"]
    assert 1 <= rows[0]["K"] <= rows[2]["K"]
