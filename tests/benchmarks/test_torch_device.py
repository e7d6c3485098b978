"""Benchmarks on another device: the figures of the host, and nothing of both is mixed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import other_device
import tiny
from benchmarks.attention import selection
from benchmarks.attention import tasks as softmax_tasks
from benchmarks.harness import torch_device
from benchmarks.quant import quality
from benchmarks.quant import tasks as quant_tasks
from commands import Cli
from sample_text import OWLS
from suffice.errors import InputError
from suffice.eval.perplexity import PerplexityPlan, PerplexityTally
from suffice.quant.activations import Site
from suffice.quant.hadamard import rotate
from suffice.quantize import torch_sites

QUALITY = (
    "none",
    "none + a=8,sites=scores",
    "none + a=4,outliers=0.05,group=16,sites=all",
    "kmeans:group=64",
    "kmeans:group=64 + a=4,outliers=0.05",
    "kllm:act_bits=16 + a=3,outliers=0.05,offline=true,fisher=true",
    "kllm:act_bits=3",
    "quarot + a=4",
    "squeezellm",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wikitext2-test-raw.txt").write_text(OWLS * 60)
    row = {"category": "rag", "turns": ["Who looks on? " * 40, "And when? " * 40]}
    (tmp_path / "spec-bench-questions.jsonl").write_text("\n".join([json.dumps(row)] * 3))
    tiny.shallow(tmp_path / "model", "llama-bias")
    return tmp_path


SENTENCE = "Computed on a GPU (a GPU), in float32."


def results(
    module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *more: str
) -> dict[str, Any]:
    """Run a benchmark on the host and on the other device; return both results by device."""
    found = {}
    for device in ("cpu", "other"):
        own = ["--model", str(folder / "model"), "--data-dir", str(folder), "--threads", "1"]
        own += ["--out", str(folder / device), *more]
        if module is quality:
            own += ["--cache", str(folder / f"cache-{device}")]
        monkeypatch.setattr(sys, "argv", ["benchmark", *own])
        if device == "cpu":
            assert module.main() == 0
        else:
            with other_device.present() as there:
                monkeypatch.setattr(torch_device, "chosen", lambda name, there=there: there)
                monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
                assert module.main() == 0
        found[device] = json.loads((folder / device / name).read_text())
        assert not found[device].get("refused")
    return found


def test_quality_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "CALIBRATION", PerplexityPlan(128, 2))
    options = ["--window", "64", "--limit", "2", "--settings", *QUALITY]
    found = results(quality, folder, monkeypatch, "quality_model_64.json", *options)
    check(found["cpu"], found["other"], SENTENCE, folder, "quality_model_64")


def check(here: Any, there: Any, sentence: str, folder: Path, name: str) -> None:
    """Cells agree; where a rounding differs, a code may jump."""
    assert there["engine"] == here["engine"]
    assert sentence not in (folder / "cpu" / f"{name}.md").read_text()
    assert sentence in (folder / "other" / f"{name}.md").read_text()
    assert here["cells"].keys() == there["cells"].keys()
    for row, cells in here["cells"].items():
        assert cells.keys() == there["cells"][row].keys()
        for column, cell in cells.items():
            other = there["cells"][row][column]
            assert "gpu" not in cell and other["gpu"] == "a GPU"
            jumps = " + a=" in column or ":a=3" in column  # codes of inputs
            # Selected rows may jump, too, and codes of weights, which depend on sums over a text.
            fitted = row.startswith(("kmeans", "kllm", "quarot", "squeezellm"))
            near = 0.1 if jumps else 1e-2 if fitted or column == "decode" else 1e-3
            for figure in ("perplexity", "ratio", "divergence"):
                expected = pytest.approx(cell[figure], rel=near, abs=1e-6)
                assert other[figure] == expected, (row, column, figure)
            apart = near if fitted and not jumps else 0.5 * near  # a token of 126
            assert abs(cell["agreement"] - other["agreement"]) < apart, (row, column)


def test_selection_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--window", "80", "--prompt", "64", "--limit", "2", "--settings", "exact"]
    options += {each.partition("=")[0]: each for each in selection.SETTINGS}.values()
    found = results(selection, folder, monkeypatch, "selection_model_80.json", *options)
    check(found["cpu"], found["other"], SENTENCE, folder, "selection_model_80")
    for setting, cells in found["cpu"]["cells"].items():
        other = found["other"]["cells"][setting]["decode"]
        assert cells["decode"]["bytes"] == pytest.approx(other["bytes"], rel=1e-3)


TASKS_RESULT = "tasks_torch_model.json"


@pytest.fixture
def questions(folder: Path) -> Path:
    row = {"goal": "The owls", "sol1": "look on.", "sol2": "sleep all day.", "label": 0}
    rows = (row | {"goal": f"The owls, {'0 ' * at}"} for at in range(9))
    (folder / "piqa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def check_answers(found: dict[str, Any], folder: Path, settings: list[str]) -> None:
    here, there = (found[device]["cells"]["piqa"] for device in ("cpu", "other"))
    assert list(here) == settings
    assert there == {name: cell | {"gpu": "a GPU"} for name, cell in here.items()}
    texts = [(folder / each / TASKS_RESULT).with_suffix(".md").read_text() for each in found]
    assert [SENTENCE in text for text in texts] == [False, True]


def test_answers_by_codes_elsewhere(
    questions: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    asked = ["--model", str(questions / "model"), "-o", str(questions / "c.json"), "--limit", "4"]
    text = str(questions / "wikitext2-test-raw.txt")
    assert cli("calibrate", *asked, "--text", text, "--window", "64").code == 0
    options = ["--device", "cpu", "--tasks", "piqa", "--calibration", str(questions / "c.json")]
    options += ["--settings", "exaq_km:bits=3"]
    found = results(softmax_tasks, questions, monkeypatch, TASKS_RESULT, *options)
    check_answers(found, questions, ["exact", "exaq_km:bits=3"])
    assert [each["engine"]["device"] for each in found.values()] == ["cpu", "a GPU"]


def test_answers_with_few_bits_elsewhere(questions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["none", "int8", "rtn:group=32"]
    options = ["--device", "cpu", "--cache", str(questions), "--settings", *settings]
    found = results(quant_tasks, questions, monkeypatch, TASKS_RESULT, *options)
    check_answers(found, questions, settings)


def test_a_table_says_which_rows_a_gpu_computed() -> None:
    assert torch_device.sentence({"a": {"x": {}}, "b": {"y": {}}}) == ""
    some = torch_device.sentence({"a": {"x": {"gpu": "G1"}, "y": {}}, "b": {"z": {"gpu": "G2"}}})
    assert some == " 2 of 3 rows were computed on a GPU (G1, G2), in float32."


def awkward(kind: str) -> np.ndarray:
    """Values [T, K] of a kind that selects and rounds in the hardest way."""
    generator = np.random.default_rng(3)
    values = generator.standard_t(3, (40, 200)).astype(np.float32)
    if kind == "ties":
        values = np.rint(2 * values)
    elif kind == "zeros":
        values[::2] = 0
        values[1, ::2] = -0.0
    elif kind == "equal":
        values[:] = -1.5
    elif kind == "tiny":
        values *= np.float32(1e-42)
    return values


@pytest.mark.parametrize("kind", ["random", "ties", "zeros", "equal", "tiny"])
@pytest.mark.parametrize(
    "site",
    [
        Site(np.arange(-7, 8, dtype=np.float32) / 7, 0.0),
        Site(np.arange(-127, 128, dtype=np.float32) / 127, 0.01),
        Site(np.arange(256, dtype=np.float32) / 255, 0.0),
        Site(np.array([-1, -0.3, -0.3, 0, 0.25, 1], np.float32), 0.05),
        Site(np.array([-1, -0.25, 0.25, 1], np.float32), 0.5),
        Site(np.array([-1, -0.25, 0.25, 1], np.float32), 0.1, group=48),
        Site(np.array([-1, 0, 0.5, 1], np.float32), 0.1, (-2.0, 1.4999999999)),
        Site(np.array([-1, 0, 0.5, 1], np.float32), 0.1, (-0.1, 0.0), 64),
    ],
)
def test_rounding_is_numpy_s(site: Site, kind: str) -> None:
    values = awkward(kind)
    expected = site.rows(values)
    found = torch_sites.rounded_rows(site, torch.from_numpy(values))
    for name in ("centroids", "scale", "rounded"):
        ours, theirs = getattr(found, name).numpy(), getattr(expected, name)
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), name
    assert found.group == expected.group


def test_values_must_be_finite() -> None:
    values = torch.ones(2, 16)
    values[1, 3] = torch.nan
    with pytest.raises(InputError, match="NaN or infinite"):
        torch_sites.rounded_rows(Site(np.ones(2, np.float32)), values)


@pytest.mark.parametrize("block", [64, 96, 192, 1536])
def test_rotations_are_those_of_the_engine(block: int) -> None:
    x = np.random.default_rng(1).standard_normal((7, 2 * block)).astype(np.float32)
    expected = rotate(x, block)
    assert np.array_equal(torch_sites.turned(torch.from_numpy(x), block).numpy(), expected)
    with other_device.present() as there:
        found = torch_sites.turned(torch.from_numpy(x).to(there), block).cpu()
    assert np.allclose(found.numpy(), expected, atol=3e-6)
    assert not np.array_equal(found.numpy(), x)


def test_figures_are_those_of_the_tally() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, reference = torch.randn(2, 30, 500, generator=generator) * 4
    reference[:20] = logits[:20] + 0.1 * reference[:20]
    targets = torch.randint(500, (30,), generator=generator).tolist()
    ours, theirs = PerplexityTally(2), PerplexityTally(2)
    ours.take([1] * 30, *torch_device.compared(targets, logits, reference))
    torch_device.compare(theirs, 1, targets, logits, reference)
    assert ours.same == theirs.same and 0 < ours.same < 30
    for name in ("nll", "reference_nll", "divergence", "change"):
        found, expected = (np.array(getattr(tally, name)[-1]) for tally in (ours, theirs))
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-6), name
    assert ours.predictions == 30 and ours.perplexity == pytest.approx(theirs.perplexity)


@pytest.mark.parametrize("module", [quality, selection])
def test_a_device_that_is_not_there(
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "tpu"):
        monkeypatch.setattr(sys, "argv", ["benchmark", "--device", name])
        assert module.main() == 2
        error = capsys.readouterr().err
        assert f"--device={name}: PyTorch has no such device here; allowed: cpu\n" in error
        assert error.count("\n") == 1
