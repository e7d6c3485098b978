"""The GPU benchmark runs without a GPU, keeps what it measured, and goes on from there."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs pip install 'suffice[gpu]'")

from benchmarks.gpu import run
from benchmarks.gpu.parts import Place

PARTS = tuple(run.every_part())
pytestmark = pytest.mark.usefixtures("one_thread")


def ran(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run", *options])
    return run.main()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs_and_resumes(
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = run.every_part()[part]
    some = whole._replace(cells=lambda place: itertools.islice(whole.cells(place), 0, None, 4))
    monkeypatch.setattr(run, "every_part", lambda: {part: some})
    options = ("--interpret", "--parts", part, "--output", str(tmp_path))
    assert ran(monkeypatch, *options) == 0
    shown = capsys.readouterr().out
    path = tmp_path / f"{part}_cpu.json"
    found = json.loads(path.read_text())
    cells = [cell for row in found["cells"].values() for cell in row.values()]
    numbers = [x for cell in cells for x in cell.values() if isinstance(x, float)]
    assert cells and numbers and all(x >= 0 for x in numbers) and found["refused"] == {}
    assert shown.count("\n| ") >= 2 and (tmp_path / f"{part}_cpu.md").is_file()
    before = path.read_bytes()
    monkeypatch.setattr(Place, "seconds", lambda *given: pytest.fail("measured again"))
    monkeypatch.setattr(Place, "once", lambda *given: pytest.fail("measured again"))
    assert ran(monkeypatch, *options) == 0
    assert path.read_bytes() == before and capsys.readouterr().out == shown


def test_exact_attention_is_right_by_every_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--interpret", "--parts", "exact", "--output", str(tmp_path))
    assert ran(monkeypatch, *options) == 0
    [row] = json.loads((tmp_path / "exact_cpu.json").read_text())["cells"].values()
    errors = [cell["error"] for name, cell in row.items() if name != "copy"]
    assert len(errors) == 4 and max(errors) < 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--interpret", "--parts", "exakt"),
            "unknown part 'exakt'. Did you mean 'exact'? Known: ",
        ),
        (("--interpret", "--minutes", "0"), "--minutes=0.0: must be above 0"),
        (("--cpu", "--parts", "exact"), "--cpu with --parts exact: must be quality"),
        ((), "PyTorch sees no GPU: --interpret runs tiny sizes without one"),
    ],
)
def test_a_mistake_is_one_line(
    options: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert ran(monkeypatch, *options) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gpu: error: {message}")
