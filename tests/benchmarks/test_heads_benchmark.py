"""Benchmarks of drafts by a head, on a tiny model: in batches, and its trees next to its chain."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import heads
import tiny
from benchmarks.speculate import batches, cells, trees
from ruler_reader import Letters


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.shallow(tmp_path_factory.mktemp("model"), max_position_embeddings=512)


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """Files of two prompts of Spec-Bench and of three of HumanEval."""
    rows = [{"question_id": at, "category": "qa", "turns": ["a b c" * (at + 1)]} for at in range(2)]
    code = [{"task_id": str(at), "prompt": f"def f{at}():"} for at in range(3)]
    for name, lines in (("spec-bench-questions.jsonl", rows), (cells.HUMANEVAL, code)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def found(folder: Path) -> tuple[dict[str, Any], str]:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


def arguments(script: str, model: Path, asked: Path, *more: str) -> list[str]:
    given = [script, "--model", str(model), "--out", str(asked / "out"), "--threads", "1"]
    given += ["--quantization", "none", "--data-dir", str(asked), "--context", "200"]
    return [*given, "--max-tokens", "20", *more]


def test_batches(monkeypatch: pytest.MonkeyPatch, model: Path, asked: Path) -> None:
    setting = f"eagle3:model={heads.make(asked / 'head', model)},adaptive=false"
    more = ["--settings", setting, "--sizes", "1", "2", "--categories", "qa", "humaneval"]
    monkeypatch.setattr(sys, "argv", arguments("batches", model, asked, *more))
    assert batches.main() == 0
    data, drawn = found(asked / "out")
    assert {place.partition(" at ")[0] for place in data["cells"]} == {
        *("qa, 1", "qa, 2", "humaneval, 1", "humaneval, 2")
    }
    cell = data["cells"]["humaneval, 2 at temperature 0"][setting]
    assert cell["prompts"] == cell["same"] == 3
    assert 0 < cell["drafting"] < cell["seconds"] and cell["steps"] > 0
    assert "| humaneval, 2 at temperature 1 | 3 |" in drawn


def test_prompts_of_a_model_without_a_chat_template(asked: Path) -> None:
    """They are given as they are, as `run` gives them."""
    plain, chat = (cells.programs(asked, Letters(template), 1, 200) for template in (False, True))
    assert plain[0].tokens == Letters(template=False).encode("def f0():")
    assert plain[0].tokens != chat[0].tokens
    (first, *_) = cells.questions("spec-bench", asked, Letters(template=False), 1, 200)["qa"]
    assert first.tokens == Letters(template=False).encode("a b c")


def test_figures_of_two_heads_do_not_mix(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    asked: Path,
) -> None:
    """A head that is trained again has other figures, in the same folder too."""
    setting = f"eagle3:model={heads.make(asked / 'head', model)}"
    more = ["--settings", setting, "--categories", "humaneval", "--limit", "1"]
    monkeypatch.setattr(sys, "argv", arguments("batches", model, asked, *more, "--sizes", "1"))
    assert batches.main() == 0 == batches.main()
    heads.make(asked / "head", model, seed=1)
    assert batches.main() == 2
    assert "give another folder with --out" in capsys.readouterr().err


def test_trees_of_a_head(monkeypatch: pytest.MonkeyPatch, model: Path, asked: Path) -> None:
    """Prompts are run by its own engine, for the hidden states."""
    head = heads.make(asked / "head", model)
    more = ["--families", "eagle3", "--no-rates", "--limit", "2", "--categories", "humaneval"]
    monkeypatch.setattr(sys, "argv", arguments("trees", model, asked, *more))
    assert trees.main() == 2, "it needs a head"
    monkeypatch.setattr(
        sys,
        "argv",
        arguments("trees", model, asked, *more, "--head", str(head), "--temperatures", "0"),
    )
    assert trees.main() == 0
    data, _ = found(asked / "out")
    (cell,) = data["cells"].values()
    ways = cell["eagle3"]["ways"]
    assert len(ways) == 7 and all(way["same"] == 2 for way in ways.values())
    assert any(way["drafted"] for way in ways.values())
