"""The benchmark of long contexts, in a tiny shape: what is measured, and what is computed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import long_contexts
from benchmarks.harness.shaped_models import MODELS, TINY

GIVEN = ["long_contexts", "--quick", "--threads", "1", "--types", "int8", "tiers", "--output"]


def test_a_quick_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest text does not fit; a second run measures nothing again."""
    monkeypatch.setattr(sys, "argv", [*GIVEN, str(tmp_path)])
    monkeypatch.setattr(long_contexts, "fits", lambda model, kind, tokens, most: tokens < 1024)
    long_contexts.run()
    data = json.loads((tmp_path / "long_contexts.json").read_text())
    cells = data["cells"]
    assert list(cells) == ["tiny 256", "tiny 512", "tiny 1024"]
    hows = [columns["int8"]["how"] for columns in cells.values()]
    assert hows == ["measured", "measured", "computed"]
    for kind in ("int8", "tiers"):
        short, middle, long = (columns[kind] for columns in cells.values())
        assert middle["rows"] == 2 * short["rows"]
        assert long["rows"] == pytest.approx(2 * middle["rows"], rel=0.01)
        assert min(each[name] for each in (short, middle) for name in ("step", "prompt")) > 0
    assert cells["tiny 512"]["tiers"]["rows"] > 1.2 * 512 * 2 * 2 * 2 * 64 * 2, "with its copy"
    table = (tmp_path / "long_contexts.md").read_text()
    assert long_contexts.NOTE in table and "| tiny | 1024 | `tiers` |" in table
    again = (tmp_path / "long_contexts.json").read_bytes()

    def never(*given: Any) -> None:
        raise AssertionError("nothing is missing")

    monkeypatch.setattr(long_contexts, "measure", never)
    long_contexts.run()
    assert (tmp_path / "long_contexts.json").read_bytes() == again


def test_what_is_measured_fits() -> None:
    model, fits = MODELS["llama-3.1-8b"], long_contexts.fits
    assert fits(model, "bfloat16", 65_536, 20e9) and not fits(model, "bfloat16", 131_072, 20e9)
    assert fits(model, "kmeans4", 131_072, 20e9) and not fits(model, "kmeans4", 131_072, 9e9)
    assert long_contexts.rows_bytes(MODELS["llama-2-7b"], "bfloat16", 1) == 524_288


def test_without_any_point_memory_alone_is_computed() -> None:
    points = [{"tokens": 128, "rows": 1.0, "all": 2.0, "step": 3.0, "part": 4.0}]
    found = long_contexts.cell(TINY, "int8", points, 1024)
    assert found["how"] == "computed" and {"step", "prompt"}.isdisjoint(found)


def test_times_along_a_line() -> None:
    points = [
        {"tokens": 128, "rows": 128.0, "all": 1128.0, "step": 1.0, "part": 2.0},
        {"tokens": 256, "rows": 256.0, "all": 1256.0, "step": 1.5, "part": 4.0},
    ]
    found = long_contexts.cell(TINY, "int8", points, 512)
    assert (found["rows"], found["all"], found["step"], found["part"]) == (512, 1512, 2.5, 8)
    assert found["prompt"] == 512 * (2 + 8) / 2 / 128
