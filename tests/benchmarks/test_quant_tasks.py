"""The benchmark of right answers on a tiny model."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tiny
from benchmarks.harness import merge_cells, record
from benchmarks.harness.torch_texts import TextsDecoder
from benchmarks.quant import quality, tasks
from benchmarks.quant.cells import kept_path
from sample_text import OWLS
from suffice.checkpoints.files import fingerprint
from suffice.checkpoints.open import open_checkpoint
from suffice.eval.likelihood import LikelihoodPlan, Pair, score
from suffice.eval.perplexity import PerplexityPlan

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    row = {"goal": "The owls", "sol1": "look on.", "sol2": "sleep all day.", "label": 0}
    lines = "\n".join(json.dumps(row | {"goal": f"The owls, {at}"}) for at in range(5))
    (tmp_path / "piqa.jsonl").write_text(lines)
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    asked = ["--model", str(model), "--data-dir", str(tmp_path), "--cache", str(tmp_path)]
    asked += ["--out", str(tmp_path / "out"), "--threads", "1"]

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["tasks", *asked, *more])
        return tasks.main()

    return run


def test_it_goes_on_where_it_stopped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--settings", "none", "int8 + int8") == 0
    asked = []
    engine = tasks.engine
    monkeypatch.setattr(
        tasks,
        "engine",
        lambda flags, setting: asked.append(setting) or engine(flags, setting),
    )
    assert run("--settings", "none", "rtn:group=32") == 0
    assert asked == ["rtn:group=32"]
    path = tmp_path / "out" / "tasks_model.json"
    (cells,) = json.loads(path.read_text())["cells"].values()
    assert list(cells) == ["none", "int8 + int8", "rtn:group=32"]
    for cell in cells.values():
        assert cell["questions"] == 5 and cell["acc"] * 5 in range(6)
    text = path.with_suffix(".md").read_text()
    assert f"| `none` | {cells['none']['acc']:.3f} ±" in text


def test_texts_as_prompts_have_their_own_result(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--settings", "none", "int8") == 0
    assert run("--settings", "none", "int8", "--mode", "prefill") == 0
    steps, prompts = (
        json.loads((tmp_path / "out" / f"tasks_{name}.json").read_text())["cells"]["piqa"]
        for name in ("model", "prefill_model")
    )
    assert prompts == steps and list(prompts) == ["none", "int8"]
    texts = [
        (tmp_path / "out" / f"tasks_{name}.md").read_text() for name in ("model", "prefill_model")
    ]
    assert ["by decode steps" in text for text in texts] == [True, False]
    assert "context and answer as one prompt" in texts[1]
    capsys.readouterr()
    assert run("--settings", "none", "--mode", "prefill", "--device", "cpu") == 2
    assert "--mode=prefill: --device runs prompts alone" in capsys.readouterr().err


def write_winogrande(folder: Path) -> None:
    row = {"sentence": "The owls _ on.", "option1": "look", "option2": "sleep", "answer": "1"}
    lines = "\n".join(json.dumps(row | {"option2": f"sleep {at}"}) for at in range(4))
    (folder / "winogrande.jsonl").write_text(lines)


def test_each_task_has_its_own_result(run: Run, tmp_path: Path) -> None:
    write_winogrande(tmp_path)
    assert run("--settings", "none") == 0
    assert run("--settings", "none", "--task", "winogrande") == 0
    path = tmp_path / "out" / "tasks_model_winogrande.json"
    assert json.loads(path.read_text())["cells"]["winogrande"]["none"]["questions"] == 4
    assert "model, winogrande, zero-shot, 4 questions" in path.with_suffix(".md").read_text()
    assert (tmp_path / "out" / "tasks_model.json").exists()


def test_weights_that_are_kept_are_used(run: Run, tmp_path: Path) -> None:
    kept_path(tmp_path, "model", "kmeans:group=64").write_bytes(b"no weights")
    assert run("--settings", "kmeans:group=64") == 2


def kept(folder: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> None:
    """Store calibrated weights as `quality` does, in the folder that is --cache."""
    monkeypatch.setattr(quality, "CALIBRATION", PerplexityPlan(64, 4))
    (folder / "wikitext2-test-raw.txt").write_text(OWLS * 20)
    (folder / "other.txt").write_text(OWLS[::-1] * 20)
    asked = ["--model", str(folder / "model"), "--data-dir", str(folder), "--cache", str(folder)]
    asked += ["--out", str(folder), "--calibrate", str(folder / "other.txt"), "--threads", "1"]
    asked += ["--window", "64", "--limit", "1", "--settings", *settings]
    monkeypatch.setattr(sys, "argv", ["quality", *asked])
    assert quality.main() == 0
    assert all(kept_path(folder, "model", setting).exists() for setting in settings)


def test_torch_runs_the_engine_s_weights(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that `quality` stores, and others: each far from float, and near the engine's."""
    kept(tmp_path, monkeypatch, "kllm:act_bits=3", "kmeans:group=64")
    flags = Namespace(model=str(tmp_path / "model"), cache=tmp_path, threads=1)
    checkpoint, random = open_checkpoint(tmp_path / "model"), np.random.default_rng(0)
    pairs = [Pair(*random.integers(3, 200, (2, 12)).tolist()) for _ in range(10)]
    floats = logs_of(tasks.weights(flags, checkpoint, "none", {}), pairs)
    for setting in ("int8", "rtn:group=64", "kmeans:group=64", "kllm:act_bits=3"):
        facts = {"model": {"name": "model", "hash": fingerprint(tmp_path / "model")}}
        found = logs_of(tasks.weights(flags, checkpoint, setting, facts), pairs)
        llm = tasks.engine(flags, f"{setting} + float32")
        expected = dict(score(llm.runner, pairs, LikelihoodPlan("prefill")))
        near = max(abs(found[at] - own.log) for at, own in expected.items())
        far = max(map(abs, np.subtract(found, floats)))
        jumps = setting.endswith(
            "bits=3"
        )  # codes of inputs on a border, and what follows from them
        assert near < (0.2 * far if jumps else 0.02) and far > 1, setting


def logs_of(decoder: TextsDecoder, pairs: list[Pair]) -> list[float]:
    return [each.log for each in decoder.follow(pairs)]


def test_torch_has_results_of_its_own(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_winogrande(tmp_path)
    settings = ["none", "int8"]
    given = ["--task", "piqa,winogrande", "--settings", *settings]
    for device in ([], ["--device", "cpu"]):
        assert run(*given, *device) == 0
    shown = capsys.readouterr().out
    assert shown.count("by decode steps") == 2 == shown.count("context and answer as one prompt")
    assert shown.count("Run in PyTorch, with activations, keys and values in float32.") == 2
    for task, end in (("piqa", ""), ("winogrande", "_winogrande")):
        engine, found = (
            json.loads((tmp_path / "out" / f"{name}_model{end}.json").read_text())
            for name in ("tasks", "tasks_torch")
        )
        assert found["engine"] == engine["engine"] | {"by": "torch"}
        assert list(found["cells"][task]) == settings
        assert found["cells"] == engine["cells"], "answers are alike"


def test_parts_of_several_processes_are_joined(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "program", lambda: "python -m benchmarks.quant.tasks")
    settings, name = ("none", "int8"), "tasks_torch_model.json"
    for setting in settings:
        assert run("--device", "cpu", "--out", str(tmp_path / setting), "--settings", setting) == 0
    assert run("--device", "cpu", "--settings", *settings) == 0
    table = merge_cells.merged(tmp_path / "joined", [tmp_path / each / name for each in settings])
    whole, joined = (json.loads((tmp_path / at / name).read_text()) for at in ("out", "joined"))
    assert joined["cells"] == whole["cells"] and joined["engine"] == whole["engine"]
    assert all(f"| `{setting}` |" in table for setting in settings)


def test_weights_of_another_model_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path, monkeypatch, "kmeans:group=64")
    tiny.make(tmp_path / "model", "llama", tokenizer=True, seed=1)
    capsys.readouterr()
    assert run("--device", "cpu", "--settings", "kmeans:group=64") == 2
    error = capsys.readouterr().err
    assert "remove it" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("none + int8", "none + int8: with --device, keys and values are float32: give weights"),
        ("kmeans", "model-kmeans.safetensors does not exist: run quality.py with --cache first"),
        ("rtn:compensate=true", "does not exist: run quality.py with --cache first"),
        ("int8:act_bits=8", "int8:act_bits=8: inputs of 8 bits are not rounded with --device"),
        ("int9", "unknown quant 'int9'. Did you mean 'int8'?"),
    ],
)
def test_what_torch_does_not_compute(
    run: Run, setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--device", "cpu", "--settings", setting) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "1"], "--limit=1: must be at least 2 questions"),
        (["--settings", "int9"], "unknown quant 'int9'. Did you mean 'int8'?"),
        (
            ["--device", "tpu", "--settings"],
            "--device=tpu: PyTorch has no such device here; allowed: cpu",
        ),
        (["--settings", "none + int4"], "unknown kv_cache_dtype 'int4'. Did you mean 'int8'?"),
    ],
)
def test_bad_input(
    run: Run, more: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(*more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
