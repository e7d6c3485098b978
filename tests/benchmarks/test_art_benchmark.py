"""ART's benchmark on a tiny model: its samples are those of the model, and its tables whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from benchmarks.attention import art
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.quantize.torch_layers import attend


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "llama", tokenizer=True, head_dim=32)


@pytest.fixture(scope="module")
def samples(model: Path) -> list[art.Sample]:
    _, runner, _ = load(Config.create(model, dtype="float32", threads=1, prefill_chunk=24))
    tokens = torch.randint(3, 200, (96,), generator=torch.Generator().manual_seed(0)).tolist()
    return art.capture(runner, tokens, (32, 96), 8)


def test_samples_are_what_the_last_tokens_saw(samples: list[art.Sample]) -> None:
    seen = {(s.layer, s.length, s.k.shape[1]) for s in samples}
    assert seen == {
        (n, end, at) for n in range(3) for end in (32, 96) for at in range(end - 7, end + 1)
    }
    for sample in samples[:: len(samples) // 7]:
        q, k, v = (torch.from_numpy(each) for each in (sample.q[:, None], sample.k, sample.v))
        exact = attend(q, k, v, sample.scale, None)[:, 0].numpy()
        paths = [path.outputs[:, -1] for path, _, _ in art.checks(sample, art.DEFAULT)]
        np.testing.assert_allclose(np.concatenate(paths), exact, rtol=1.3e-6, atol=1e-5)


def test_agreement_counts_early_and_late_stops(samples: list[art.Sample]) -> None:
    narrow = art.ART(change=0.5, angle=0.5, patience=1, block=16, probe=16)
    found = art.agreement(samples, narrow)
    assert found["n"] == 4 * len(samples) and found["stopped"] > 0
    together = found["agree"] + found["false positives"] + found["false negatives"]
    assert together == pytest.approx(1)
    assert found["false positives"] > 0, "half of the output moves less than all of it"
    whole = art.agreement(samples, art.ART(change=0.5, angle=0.5, patience=1, block=16, probe=32))
    assert whole["agree"] == 1 and whole["offset"] is None


def test_a_scattered_probe_has_elements_of_the_whole_output() -> None:
    output = np.arange(64.0)[None]
    asked = {"change": 1.0, "probe": 32}
    assert art.Scattered(**asked).probed(output).tolist() == [list(range(0, 64, 2))]
    assert art.ART(**asked).probed(output).tolist() == [[*range(16), *range(32, 48)]]
    assert np.array_equal(art.Scattered(probe=128).probed(output), output)


def test_without_a_criterion_it_stops_earlier(samples: list[art.Sample]) -> None:
    for without, tau, phi in (("scale", 0.1, 0.5), ("direction", 5.0, 0.01)):
        base = art.ART(change=tau, angle=phi, patience=1, block=16)
        full, ablated = art.quality(samples, base), art.quality(samples, base, without)
        assert ablated["blocks read"] < full["blocks read"] - 0.05
    nothing = art.quality(samples, art.ART(change=0, block=16))
    assert nothing["blocks read"] == 1 and nothing["error max"] == nothing["missing mean"] == 0


def test_the_tables_are_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The owls look on; 0123456789 again. " * 30)
    asked = ["--quick", "--model", str(model), "--text", str(text), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["art", *asked])
    assert art.main() == 0
    found = json.loads((tmp_path / "art.json").read_text())
    assert [len(found[name]) for name in art.TITLES] == [6, 9, 12, 40, 3]
    printed = capsys.readouterr().out
    assert all(title in printed for title in art.TITLES.values())
    assert "45.74, 0.633 ms" in (tmp_path / "art.md").read_text()
