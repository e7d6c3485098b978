"""The benchmark of right answers on a tiny model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from benchmarks.quant import tasks
from benchmarks.quant.cells import kept_path

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


def test_each_task_has_its_own_result(run: Run, tmp_path: Path) -> None:
    row = {"sentence": "The owls _ on.", "option1": "look", "option2": "sleep", "answer": "1"}
    lines = "\n".join(json.dumps(row | {"option2": f"sleep {at}"}) for at in range(4))
    (tmp_path / "winogrande.jsonl").write_text(lines)
    assert run("--settings", "none") == 0
    assert run("--settings", "none", "--task", "winogrande") == 0
    path = tmp_path / "out" / "tasks_model_winogrande.json"
    assert json.loads(path.read_text())["cells"]["winogrande"]["none"]["questions"] == 4
    assert "model, winogrande, zero-shot, 4 questions" in path.with_suffix(".md").read_text()
    assert (tmp_path / "out" / "tasks_model.json").exists()


def test_weights_that_are_kept_are_used(run: Run, tmp_path: Path) -> None:
    kept_path(tmp_path, "model", "kmeans:group=64").write_bytes(b"no weights")
    assert run("--settings", "kmeans:group=64") == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "1"], "--limit=1: must be at least 2 questions"),
        (["--settings", "int9"], "unknown quant 'int9'. Did you mean 'int8'?"),
        (["--settings", "none + int4"], "unknown kv_cache_dtype 'int4'. Did you mean 'int8'?"),
    ],
)
def test_bad_input(
    run: Run, more: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(*more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
