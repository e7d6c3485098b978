"""What tests of several benchmarks share."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """Return the flags of a benchmark of a tiny model on a short text, with results in `out`."""
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    (tmp_path / "wikitext2-test-raw.txt").write_text("The owls look on; 0123456789 again. " * 30)
    return ["--data-dir", str(tmp_path), "--model", str(model), "--out", str(tmp_path / "out")]
