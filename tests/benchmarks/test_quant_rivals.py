"""KLLM's rivals: what their weights and inputs are, and their cells in the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from benchmarks.quant import quality, rivals
from benchmarks.quant.rivals import RivalDecoder, even, kmeans
from draws import normal
from sample_text import OWLS
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.quant.none import NoQuant
from suffice.quantize.layerwise import SiteInputs
from suffice.quantize.torch_decoder import TorchDecoder

K = 256


def site(scales: np.ndarray) -> tuple[dict[str, np.ndarray], SiteInputs, np.ndarray]:
    """Return weights [N, K] of a site, what is known of its inputs, and these inputs [T, K]."""
    x = normal(2048, K, seed=3) * scales
    inputs = SiteInputs(torch.from_numpy(x.T @ x / len(x)), torch.from_numpy(x[:512]))
    weights = {"q": normal(48, K, seed=1), "k": normal(16, K, seed=2)}
    weights["q"][3] *= 7
    return weights, inputs, x


def outliers() -> np.ndarray:
    """Scales of channels, a few of them large."""
    scales = np.ones(K, np.float32)
    scales[::37] = 30
    return scales


def off(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_an_even_grid() -> None:
    values = np.array([[-7.0, 3.4, 0.6, 0.4], [0.0, 0.0, 0.0, 0.0]])
    assert even(values, 4).tolist() == [[-7, 3, 1, 0], [0, 0, 0, 0]]
    assert even(values[:1], 2, 0.5).tolist() == [[-3.5, 3.5, 0.0, 0.0]], "-7 is clipped"


@pytest.mark.parametrize("name", ["smoothquant", "quarot", "atom"])
def test_a_rival_mends_channels_that_are_outliers(name: str) -> None:
    """The product with its weights and inputs is nearer than with both rounded as they are."""
    weights, inputs, x = site(outliers())
    found, rounder = rivals.RIVALS[name](weights, inputs)
    assert rounder is not None
    for matrix, weight in weights.items():
        exact = x @ weight.T
        plain = off(even(x, 4) @ even(weight, 4).T, exact)
        assert off(rounder(x, 4) @ found[matrix].T, exact) < 0.8 * plain, matrix
        assert off(rounder(x, 8) @ weight.T, exact) < 0.05, "the inputs are in their own basis"
        assert 0.02 < off(found[matrix], weight) < 0.5, "4 bits, in their own basis"


def test_smoothing_moves_the_spread_to_the_weights() -> None:
    weights, inputs, x = site(outliers())
    _, rounder = rivals.smoothquant(weights, inputs)
    largest = np.max([np.abs(each).max(0) for each in weights.values()], axis=0)
    smooth = np.sqrt(np.abs(inputs.samples.numpy()).max(0) / largest)
    np.testing.assert_allclose(rounder(x[:4], 4), even(x[:4] / smooth, 4) * smooth, rtol=1e-5)


def test_the_largest_channels_of_atom_have_8_bits() -> None:
    weights, inputs, x = site(outliers())
    found, rounder = rivals.atom(weights, inputs)
    wide = np.argsort(-inputs.hessian.numpy().diagonal(), kind="stable")[: round(K / 32)]
    assert set(wide) > set(range(0, K, 37))
    low = np.setdiff1d(np.arange(K), wide)
    for weight, own in zip(weights.values(), found.values(), strict=True):
        assert off(own[:, wide], weight[:, wide]) < 0.01 < off(own[:, low], weight[:, low])
    rounded = rounder(x, 4)
    assert off(rounded[:, wide], x[:, wide]) < 0.01 < off(rounded[:, low], x[:, low])
    group = low[np.argsort(inputs.hessian.numpy().diagonal()[low], kind="stable")][:128]
    assert len(np.unique(rounded[0, group])) <= 15, "a scale for 128 channels"


def test_rows_have_sixteen_values_and_a_few_exact_ones() -> None:
    weights, inputs, _ = site(np.ones(K, np.float32))
    weights["q"][5, 7] = 50.0
    found, rounder = rivals.squeezellm(weights, inputs)
    assert rounder is None
    exact = found["q"] == weights["q"]
    assert exact[5, 7] and 0.003 < exact.mean() < 0.02
    for row, same in zip(found["q"], exact, strict=True):
        assert len(np.unique(row[~same])) <= 16
    assert off(found["q"], weights["q"]) < 0.1
    heavy = inputs.hessian.clone()
    heavy[:8, :8] *= 1000.0
    weighted, _ = rivals.squeezellm(weights, SiteInputs(heavy, inputs.samples))
    near, far = (off(each["q"][:, :8], weights["q"][:, :8]) for each in (weighted, found))
    assert near < 0.7 * far, "what matters is nearer to its centroid"


def test_kmeans_finds_the_values_of_a_row() -> None:
    values = np.sort(normal(3, 16, seed=9), axis=1)
    rows = np.repeat(values, 20, axis=1)
    np.testing.assert_allclose(kmeans(rows, np.ones_like(rows)), values, rtol=1e-6)


def test_bits() -> None:
    assert rivals.bits_of("quarot", [(8, 64)]) == 4.25
    assert rivals.bits_of("atom", [(8, 64), (8, 128)]) == 4.25
    assert rivals.bits_of("squeezellm", [(8, 256)]) == pytest.approx(5 + 0.0045 * 48)


def test_cells_of_rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OWLS * 30
    (tmp_path / "wikitext2-test-raw.txt").write_text(text)
    row = json.dumps({"category": "rag", "turns": ["Who looks on? " * 90]})
    (tmp_path / "spec-bench-questions.jsonl").write_text(row)
    model = tiny.shallow(tmp_path / "model")
    asked = ["--model", str(model), "--data-dir", str(tmp_path), "--window", "64", "--limit", "2"]
    asked += ["--out", str(tmp_path / "out"), "--cache", str(tmp_path)]
    settings = ["none", "squeezellm", *(f"{name} + a=4" for name in list(rivals.RIVALS)[:3])]
    monkeypatch.setattr(sys, "argv", ["quality", *asked, "--settings", *settings, "atom + a=3"])
    assert quality.main() == 0
    path = tmp_path / "out" / "quality_model_64.json"
    cells = json.loads(path.read_text())["cells"]
    found = {name: cell for row in cells.values() for name, cell in row.items()}
    assert found.keys() == {*settings, "atom + a=3"}
    assert all(cell["divergence"] > 0 for name, cell in found.items() if name != "none")
    assert found["atom + a=4"]["divergence"] < found["atom + a=3"]["divergence"]
    assert found["squeezellm"]["divergence"] < found["smoothquant + a=4"]["divergence"]
    assert "| `quarot` | 4." in path.with_suffix(".md").read_text()


def test_squeezellm_has_exact_inputs(tmp_path: Path) -> None:
    model = tiny.shallow(tmp_path / "model")
    decoder = TorchDecoder.from_checkpoint(open_checkpoint(model), NoQuant("float32"))
    *_, rival = rivals.quantized(decoder, [list(range(20, 80))], "squeezellm")
    assert isinstance(rival, RivalDecoder)
    with pytest.raises(InputError, match="squeezellm: has inputs of 16 bits alone"):
        rival.sites(4)
