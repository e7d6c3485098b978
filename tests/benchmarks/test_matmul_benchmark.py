"""The benchmark of products in codes runs, and its table has every setting."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.quant import matmul
from benchmarks.quant.matmul import ROWS
from suffice import native
from suffice.checkpoints.formats.gguf_types import CODES


@pytest.mark.usefixtures("one_thread")
def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "QUICK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["matmul", "--quick"])
    assert matmul.main() == 0
    found = json.loads((tmp_path / "matmul.json").read_text())
    settings = len({1, native.cores()}) * (2 * len(CODES) + 4) * len(ROWS)
    assert len(found["products"]) == settings and len(found["outliers"]) == 4
    # N - 1 and N / 2 - 1 to set up, up to 14 a pop
    size, count, _, _, comparisons = found["outliers"][2]
    assert (size, count) == (4096, 20) and comparisons <= 1.5 * size + 2 * count * 12
    assert all(line[4] > 0 for line in found["products"])
