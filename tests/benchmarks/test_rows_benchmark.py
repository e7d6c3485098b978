"""benchmarks/engine/rows.py on tiny sizes, and its fractions on known times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.engine import rows
from suffice import native


def test_every_layer_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "QUICK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["rows", "--quick"])
    threads = native.threads()
    try:
        assert rows.main() == 0
    finally:
        native.set_threads(threads)
    found = json.loads((tmp_path / "rows.json").read_text())["layers"]
    assert [each["weights"] for each in found[: len(rows.KINDS)]] == [k.name for k in rows.KINDS]
    for each in found:
        assert list(map(int, each["seconds"])) == list(rows.ROWS)
        assert min(each["seconds"].values()) > 0 and each["over_one"]["1"] == 1
    assert "Q4_1, inputs of 8 bits" in (tmp_path / "rows.md").read_text()


def test_the_longer_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 x 256 int8 weights, one row waits for memory and many for products."""
    monkeypatch.setattr(rows.native, "read_bandwidth", lambda *given: 1e9)
    monkeypatch.setattr(rows.native, "product_rate", lambda *given: 1e9)
    monkeypatch.setattr(rows, "seconds", lambda copies, x: 1e-3 * len(x))
    found = {each["weights"]: each for each in rows.measure((64, 256), 1, 2, 1)}
    int8 = found["int8, inputs of 8 bits"]
    size = int8["bytes"]
    assert isinstance(size, int) and size > 64 * 256
    assert int8["fraction"] == {
        count: pytest.approx(max(size / 1e9, 64 * 256 * count / 1e9) / (1e-3 * count))
        for count in rows.ROWS
    }
    twice, once = (found[f"Q4_1, inputs of {bits} bits"]["fraction"] for bits in (16, 8))
    assert isinstance(twice, dict) and isinstance(once, dict)
    assert twice[128] == pytest.approx(2 * once[128])
    assert int8["over_one"] == {count: pytest.approx(count) for count in rows.ROWS}


def test_float32_takes_the_place_of_pairs_that_a_processor_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {"bfloat16": 27.0, "float32": 54.0, "int8": 90.0}
    monkeypatch.setattr(rows.native, "product_rate", lambda name, *given: rates[name])
    assert rows.peaks_of(1) == {"bfloat16": 54.0, "int8": 90.0}


def test_bars_are_of_all_threads_and_every_shape() -> None:
    def layer(shape: tuple[int, int], threads: int, weights: str, **figures: float) -> rows.Layer:
        by_rows = {name: dict.fromkeys(rows.ROWS, value) for name, value in figures.items()}
        return {"shape": shape, "threads": threads, "weights": weights} | by_rows

    lines = [
        layer(shape, threads, weights, seconds=time, fraction=fraction, over_one=2.0)
        for threads, shape, fraction in ((1, (8, 8), 0.1), (2, (8, 8), 0.9), (2, (9, 9), 0.7))
        for weights, time in ((rows.BF16, 1.0), (rows.INT8, 2.0), (rows.CODES, 2.2))
    ]
    assert [bar[2:] for bar in rows.bars(lines)] == [
        ["0.70 to 0.90", "1 of 2"],
        ["0.70 to 0.90", "1 of 2"],
        ["1.10 to 1.10", "2 of 2"],
        ["2.00 to 2.00", "0 of 2"],
        ["2.00 to 2.00", "2 of 2"],
    ]
