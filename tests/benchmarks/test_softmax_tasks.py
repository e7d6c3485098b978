"""The benchmark of right answers with a coded softmax, on a tiny model."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from benchmarks.attention import tasks
from commands import Cli

Run = Callable[..., int]
TEXT = "The owls look on; 0123456789 again and again, as they have done before. " * 30


@pytest.fixture
def run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    row = {"goal": "The owls", "sol1": "look on.", "sol2": "sleep all day.", "label": 0}
    lines = "\n".join(json.dumps(row | {"goal": f"The owls, {at}"}) for at in range(6))
    (tmp_path / "piqa.jsonl").write_text(lines)
    row = {"question": "are owls here", "passage": "The owls look on.", "label": 1}
    lines = "\n".join(json.dumps(row | {"passage": f"{at} owls look on."}) for at in range(6))
    (tmp_path / "boolq.jsonl").write_text(lines)
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True, max_position_embeddings=256)
    (tmp_path / "text.txt").write_text(TEXT)
    calibration = str(tmp_path / "c.json")
    asked = ["--model", str(model), "--text", str(tmp_path / "text.txt"), "-o", calibration]
    assert cli("calibrate", *asked, "--window", "64", "--limit", "4").code == 0
    asked = ["--model", str(model), "--data-dir", str(tmp_path), "--calibration", calibration]
    asked += ["--tasks", "piqa", "boolq", "--out", str(tmp_path / "out"), "--threads", "1"]

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["tasks", *asked, *more])
        return tasks.main()

    return run


def test_cells_are_compared_with_exact_and_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--settings", "exaq:bits=2") == 0
    asked: list[str] = []
    engine = tasks.engine
    monkeypatch.setattr(
        tasks, "engine", lambda flags, setting: asked.append(setting) or engine(flags, setting)
    )
    assert run("--settings", "exaq:bits=2", "exaq_km:bits=3") == 0
    assert asked == ["exaq_km:bits=3"], "what is measured is not measured again"
    path = tmp_path / "out" / "tasks_model.json"
    cells = json.loads(path.read_text())["cells"]
    assert [list(row) for row in cells.values()] == [["exact", "exaq:bits=2", "exaq_km:bits=3"]] * 2
    for row in cells.values():
        assert row["exact"]["change"] == 0 == row["exact"]["change_stderr"]
        for cell in row.values():
            assert cell["questions"] == 6
            assert cell["change"] == pytest.approx(cell["acc"] - row["exact"]["acc"])
    text = path.with_suffix(".md").read_text()
    mean = sum(row["exaq:bits=2"]["acc"] for row in cells.values()) / 2
    assert f"| {mean:.1f} ±" in text and "| `exaq_km:bits=3` |" in text


def test_the_error_of_a_change_is_of_pairs() -> None:
    """Two settings that answer alike but once: the change has a small error, the shares not."""
    exact = [at % 2 == 0 for at in range(100)]
    cell = tasks.cell_of([not exact[0], *exact[1:]], exact)
    assert cell["change"] == pytest.approx(-1) and cell["change_stderr"] == pytest.approx(1)
    assert cell["acc"] == pytest.approx(49) and cell["acc_stderr"] > 4.9


def test_prompts_go_by_codes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LLM", lambda model, **options: options["softmax"])
    flags = Namespace(model="m", calibration="c", threads=1)
    found = [tasks.engine(flags, setting) for setting in ("exaq:bits=2", "exaq_km")]
    assert found == ["exaq:bits=2,prefill=true", "exaq_km:prefill=true"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "1"], "--limit=1: must be at least 2 questions"),
        (["--settings", "exaq:bits=5"], "exaq: bits=5: must be 2, 3 or 4"),
        (["--tasks", "pica"], "unknown task 'pica'. Did you mean 'piqa'?"),
    ],
)
def test_bad_input(
    run: Run, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*more) == 2
    assert message in capsys.readouterr().err
