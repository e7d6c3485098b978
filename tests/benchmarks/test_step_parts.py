"""The benchmark of a step's parts: they make up the step, and a part that is not timed shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import step_parts
from benchmarks.harness import record


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BUILD", tmp_path)
    monkeypatch.setattr(step_parts, "COUNTS", (1, 3))
    monkeypatch.setattr(sys, "argv", ["step_parts", "--quick", "--output", str(tmp_path / "out")])
    assert step_parts.SCRIPT.main() == 0
    found = json.loads((tmp_path / "out" / "step_parts.json").read_text())
    assert set(found["settings"]) == set(step_parts.SETTINGS)
    for by_batch in found["settings"].values():
        assert set(by_batch) == {f"{n}, {kind}" for n in (1, 3) for kind in step_parts.DRAWN}
        for figures in by_batch.values():
            assert set(figures) == {"seconds", *step_parts.PARTS, step_parts.BETWEEN}
    assert "no figure means anything" in (tmp_path / "out" / "step_parts.md").read_text()


def test_decode_steps_are_the_difference_of_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = dict.fromkeys(step_parts.PARTS, 0.0)
    runs = iter(
        [
            {"wall": 1.0} | parts | {"products": 1.0},
            {"wall": 3.0} | parts | {"products": 3.0, "norms": 0.5},
        ]
    )
    monkeypatch.setattr(step_parts, "seconds", lambda *_: next(runs))
    monkeypatch.setattr(step_parts.native, "threads", lambda: 2)
    llm: Any = None
    found = step_parts.step(llm, [[1]], "greedy", 10, 0)
    assert found["seconds"] == pytest.approx(0.2)
    assert found["products"] == pytest.approx(0.5) and found["norms"] == pytest.approx(0.125)
    assert found[step_parts.BETWEEN] == pytest.approx(0.375)
    assert step_parts.besides(found) == pytest.approx(0.5)
    assert step_parts.reached(found) == "**no**"
    assert step_parts.reached(found | {"products": 0.9, "attention": 0.05}) == "yes"
