"""benchmarks/engine/attention_rows.py on tiny sizes, and its fractions on known times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engine import attention_rows
from benchmarks.engine.attention_rows import ROWS, Subject
from suffice import native

TINY = Subject((4, 2, 32), 64, "bfloat16")


def test_every_type_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_rows, "QUICK", tmp_path)
    monkeypatch.setattr(sys, "argv", ["attention_rows", "--quick"])
    threads = native.threads()
    try:
        assert attention_rows.main() == 0
    finally:
        native.set_threads(threads)
    found = json.loads((tmp_path / "attention_rows.json").read_text())["layers"]
    assert [each["type"] for each in found[:3]] == list(attention_rows.PEAKS)
    for each in found:
        assert list(map(int, each["seconds"])) == list(ROWS)
        assert min(each["seconds"].values()) > 0 and each["over_one"]["1"] == 1
    assert "bfloat16" in (tmp_path / "attention_rows.md").read_text()


def test_what_a_row_must_read_and_multiply() -> None:
    cache = TINY.cache(1)
    assert cache.layers == 2
    assert TINY.bytes_read(cache, 8) == (64 + 8) * 2 * 2 * 32 * 2  # rows, keys and values, heads
    assert TINY.pairs(1) == 65 and TINY.pairs(3) == 65 + 66 + 67
    assert TINY.products(3) == 2 * 4 * 32 * (65 + 66 + 67)


def test_the_longer_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row waits for memory here, and many for products, at the faster of two rates."""
    rates = {"bfloat16": 1e6, "float32": 5e6}
    monkeypatch.setattr(attention_rows.native, "read_bandwidth", lambda *given: 1e6)
    monkeypatch.setattr(attention_rows.native, "product_rate", lambda name, *given: rates[name])
    monkeypatch.setattr(attention_rows, "attention", lambda subject, cache, rows: (rows, None))
    monkeypatch.setattr(attention_rows, "seconds", lambda rows, layers: 1e-3 * rows)
    found = attention_rows.measure(TINY, 1, 2, 1)
    cache = TINY.cache(1)
    limits = {
        rows: max(TINY.bytes_read(cache, rows) / 1e6, TINY.products(rows) / 5e6) for rows in ROWS
    }
    assert limits[1] == TINY.bytes_read(cache, 1) / 1e6
    assert limits[128] == TINY.products(128) / 5e6
    assert found["fraction"] == {rows: pytest.approx(limits[rows] / (1e-3 * rows)) for rows in ROWS}
    assert found["over_one"] == {rows: pytest.approx(rows) for rows in ROWS}


def test_rows_beyond_a_piece_are_those_of_a_step() -> None:
    """Each of 40 rows has the bits that it gets as the last of fewer rows."""
    cache = TINY.cache(1)
    call, together = attention_rows.attention(TINY, cache, 40)
    call(0)
    assert together.shape == (40, 4, 32)
    for rows in (1, 8, 32, 33):
        call, fewer = attention_rows.attention(TINY, cache, rows)
        call(0)
        assert np.array_equal(fewer, together[:rows])
