"""benchmarks/growth/paged.py on tiny sizes, with a worker that stands for vLLM's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.growth import paged
from benchmarks.growth.paged_numbers import numbers


def attention(case: paged.Case) -> Any:
    """Return the attention of every request in float64, [batch, heads, size]."""
    keys, values, queries = (
        each.astype(np.float64) for each in numbers(case.heads, case.size, case.batch, case.length)
    )
    scores = np.einsum("bhd,shd->bhs", queries, keys) * case.size**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhs,shd->bhd", weights / weights.sum(-1, keepdims=True), values)


class Worker:
    """Answers what vLLM's process would; `shift` is added to its output."""

    shift = 0.0
    closed = 0

    def __init__(self, *given: Any) -> None:
        self.case = paged.TINY[0]

    def ask(self, do: str, **case: int) -> dict[str, Any]:
        if do == "prepare":
            assert case.pop("layers") == 2
            self.case = paged.Case("", **case)
            return {"isa": "vec"}
        output = attention(self.case)[-1].ravel() + self.shift
        return {"seconds": 1.0, "output": output.tolist()}

    def close(self) -> None:
        Worker.closed += 1


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(paged, "Worker", Worker)
    monkeypatch.setattr(paged.install, "install", lambda *given: None)
    monkeypatch.setattr(paged.install.Package, "environment", lambda *given: {})
    given = ["paged", "--quick", "--rounds", "2", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", given)
    return paged.main


def test_both_attend_to_the_same_numbers(run: Any, tmp_path: Path) -> None:
    assert run() == 0 and Worker.closed
    data = json.loads((tmp_path / "paged.json").read_text())
    case = data["cases"]["tiny"]
    assert case["vllm"] == [1.0, 1.0]
    assert case["bytes"] == 2 * 2 * 2 * 32 * 2 * 160, "keys and values, bfloat16"
    assert all(seconds < 1 for seconds in case["suffice"])
    assert "| tiny | 2 of 32 |" in (tmp_path / "paged.md").read_text()


def test_another_output_is_an_error(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Worker, "shift", 0.1)
    assert run() == 1
    assert "paged: error: tiny: vLLM's output differs from ours" in capsys.readouterr().err


def test_ratios_are_within_a_round() -> None:
    seconds = {"roof": [4e9, 2e9, 4e9], "suffice": [0.1, 0.2, 0.1], "vllm": [0.2, 0.6, 0.5]}
    case = {"heads": 32, "size": 128, "bytes": 2e8, **seconds}
    text = paged.table({"threads": 2, "cases": {"OPT-6.7B": case}})
    assert "| OPT-6.7B | 32 of 128 | 100 | 500 | 0.50 | 3 (2 to 5) | 1.57 |" in text
