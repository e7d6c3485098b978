"""The mass that techniques leave out: what is read is what the engine reads, and sums are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import tiny
from suffice import LLM
from suffice.attention.aet import AET
from suffice.attention.certified import Certified
from suffice.attention.kernel import attend
from suffice.engine.config import Config
from suffice.engine.runner import load
from suffice.policy.quest import Quest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import missing_mass

TEXT = torch.randint(3, 200, (200,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return tiny.make(folder, tokenizer=True, max_position_embeddings=256, head_dim=32)


@pytest.fixture(scope="module")
def layers(model: Path) -> list[missing_mass.Layer]:
    _, runner, _ = load(Config.create(model, dtype="float32", threads=1))
    return list(missing_mass.layers_of(runner, TEXT))


def test_early_termination_reads_what_the_engine_reads(
    model: Path, layers: list[missing_mass.Layer]
) -> None:
    """In the first layer, whose queries no technique has changed, with what it learns exactly."""
    technique = AET(k=0.6, v=0.0, globals=64)
    llm = LLM(model, dtype="float32", threads=1, attention=AET(k=2, v=1e-30))
    states = layers[0].learnt([199])
    keys, _ = layers[0].read(technique, 199, states[199])
    sequence = llm.runner.open("it", 256)
    llm.runner.reserve(sequence, len(TEXT))
    for token in TEXT[:-1]:
        llm.runner.step([sequence], [token])
    q, cache = layers[0].q[:, 199:], sequence.cache
    cache.append_tentative(
        torch.stack([layer.k[:, 199:] for layer in layers]),
        torch.stack([layer.v[:, 199:] for layer in layers]),
        [-1],
    )
    _, reads = attend(technique.rule(), q, cache, 0, scale=layers[0].scale)
    assert [read.key_rows for read in reads] == keys.sum(-1).tolist()
    assert keys.sum() < keys.numel()


def test_masses_are_those_of_the_softmax(layers: list[missing_mass.Layer]) -> None:
    layer = layers[-1]
    expected = [
        (layer.scale * layer.k[head // 2, :151] @ layer.q[head, 150]).softmax(-1)[:100].sum()
        for head in range(4)
    ]
    read = torch.ones(2, 151, dtype=torch.bool)
    read[:, :100] = False
    found = missing_mass.left_out(layer, 150, read).float()
    torch.testing.assert_close(found, torch.stack(expected))


def test_certified_keeps_its_promise_and_quest_its_budget(
    layers: list[missing_mass.Layer],
) -> None:
    states = layers[0].learnt([199])[199]
    for layer in layers:
        keys, values = layer.read(Certified(eps=0.1), 199, states)
        assert missing_mass.left_out(layer, 199, values).max() <= 0.1
        assert torch.equal(keys, values)
        keys, _ = layer.read(Quest(budget=64), 199, states)
        whole = layer.index < 2
        assert set(keys.sum(-1).tolist()) == ({200} if whole else {56}), "the newest block has 8"


def test_the_table_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The owls look on; 0123456789 again. " * 30)
    asked = ["--quick", "--model", str(model), "--text", str(text), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["missing_mass.py", *asked])
    assert missing_mass.main() == 0
    found = json.loads((tmp_path / "missing_mass.json").read_text())["found"]
    assert list(found) == list(missing_mass.SETTINGS)
    for each in found.values():
        assert 0 <= each["mean"] <= each["greatest"] <= 1 and each["mean"] <= each["dropped"]
    assert found["certified:eps=0.05"]["greatest"] <= 0.05
    assert "| `aet:k=0.95` |" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["missing_mass.py", "--model", "smollm3-135m"])
    assert missing_mass.main() == 2
